"""The report in a few sentences: what ran, which method did best, how that compares with paper and baselines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.registry.metrics import HIGHER
from pipeline.regression.baselines import NAMES as BASELINES
from pipeline.report import labels, wording
from pipeline.report.results import Result, Scores
from pipeline.report.tables import Record

JUDGED_BY = ("log_likelihood", "nll")  # the metric of tables, and that of images
PICTURES = ("rejection", "log_likelihood")  # which figure supports the verdict: the first one that was drawn
MANY = 8  # data sets that get a sentence each


@dataclass(frozen=True)
class Sentence:
    text: str
    kind: str = "told"  # a class of the page: reproduced, differs, unfinished or told


def of(results: Sequence[Result], table_1: Sequence[Record], table_2: Sequence[Record]) -> list[Sentence]:
    records = [*table_1, *table_2]
    return [
        *_what_ran(results),
        *_best(records),
        *_against_baselines([result.scores for result in results]),
        *_against_paper(records),
    ]


def _what_ran(results: Sequence[Result]) -> Iterator[Sentence]:
    finished = [result for result in results if result.scores.complete]
    missing = [result for result in results if result.scores.missing is not None]
    if not finished:
        yield Sentence(f"No cell of this study is finished; without data: {len(missing)} of {len(results)}.", "differs")
        return
    rest = []
    if missing:
        rest.append(f"without data: {len(missing)}")
    if len(results) > len(finished) + len(missing):
        rest.append(f"run in part only: {len(results) - len(finished) - len(missing)}")
    yield Sentence(
        f"{len(finished)} of {len(results)} cells are finished" + (f"; {'; '.join(rest)}." if rest else "."),
        "unfinished" if rest else "told",
    )


def _best(records: Sequence[Record]) -> Iterator[Sentence]:
    """The best method of each data set, by the log-likelihood of tables and the NLL of images."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.metric in JUDGED_BY and record.ran and record.complete and record.mean is not None:
            groups.setdefault((record.data, record.network), []).append(record)
    if len(groups) > MANY:
        winners = Counter(labels.method_label(_ranked(group)[0].method) for group in groups.values())
        counted = ", ".join(f"{method} on {count}" for method, count in winners.most_common())
        yield Sentence(f"Best on how many of {len(groups)} data sets: {counted}.")
        return
    for group in groups.values():
        yield Sentence(_about(_ranked(group)))


def _ranked(group: Sequence[Record]) -> list[Record]:
    """Best first."""
    higher = labels.metric(group[0].metric).better == HIGHER
    return sorted(group, key=lambda record: record.mean or 0.0, reverse=higher)


def _about(ranked: Sequence[Record]) -> str:
    best = ranked[0]
    where = f"{labels.data_label(best.data)}, {labels.label(best.data, best.metric)}"
    if len(ranked) == 1:
        return f"{where}: {_figure(best)}; no other method was run."
    second = ranked[1]
    assert best.mean is not None and second.mean is not None
    spread = math.hypot(best.std or 0.0, second.std or 0.0)
    level = abs(best.mean - second.mean) <= spread
    relation = "is level with" if level else "is ahead of"
    return f"{where}: {_figure(best)} {relation} {_figure(second)}" + (f", of {len(ranked)} methods." if level else ".")


def _figure(record: Record) -> str:
    return f"{labels.method_label(record.method)} ({wording.ours(record)})"


def _against_baselines(scores: Sequence[Scores]) -> Iterator[Sentence]:
    """A warning for each cell whose error is above that of a baseline."""
    for one in scores:
        error = one.metrics.get("rmse")
        if error is None or error.mean is None:
            continue
        beaten = [BASELINES[name] for name, value in one.baselines.items() if error.mean > value]
        if beaten:
            yield Sentence(
                f"{one.cell} does worse than {' and '.join(beaten)}: its RMSE is {error.mean:.4g}.", "differs"
            )


def _against_paper(records: Sequence[Record]) -> Iterator[Sentence]:
    judged = [record.reproduced for record in records if record.paper and record.reproduced is not None]
    if judged:
        text = f"Reproduced: {sum(judged)} of {len(judged)} figures that can be compared with the paper's."
        yield Sentence(text, "reproduced" if all(judged) else "differs")
