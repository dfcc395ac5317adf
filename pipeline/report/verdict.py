"""The report in a few sentences: what ran, which method did best, how that compares with paper and baselines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.registry.metrics import HIGHER, LEVELS
from pipeline.regression.baselines import NAMES as BASELINES
from pipeline.report import labels, wording
from pipeline.report.results import Result, Scores
from pipeline.report.tables import Record

JUDGED_BY = ("log_likelihood", "nll")  # the metric of tables, and that of images
PICTURES = ("rejection", "log_likelihood")  # which figure supports the verdict: the first one that was drawn
LEVEL = LEVELS[-1]  # percent: the intervals that the verdict names
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
        *_intervals([result.scores for result in results], {record.data for record in records if record.paper}),
        *_against_baselines([result.scores for result in results]),
        *_against_paper(records),
    ]


def _what_ran(results: Sequence[Result]) -> Iterator[Sentence]:
    finished = sum(result.scores.complete for result in results)
    missing = sum(result.scores.missing is not None for result in results)
    part = len(results) - finished - missing
    counts = [f"without data: {missing}"] if missing else []
    counts += [f"run in part only, as study.limits says: {part}"] if part else []
    text = "; ".join([f"{finished} of {len(results)} cells are finished", *counts]) + "."
    yield Sentence(text, "differs" if finished + part == 0 else "unfinished" if counts else "told")


def _best(records: Sequence[Record]) -> Iterator[Sentence]:
    """The best method of each data set, by the log-likelihood of tables and the NLL of images.

    Cells that were cut short count only where no cell is finished.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.metric in JUDGED_BY and record.ran and record.mean is not None:
            groups.setdefault((record.data, record.network), []).append(record)
    found = [[record for record in group if record.complete] or group for group in groups.values()]
    if len(found) > MANY:
        winners = Counter(labels.method_label(_ranked(group)[0].method) for group in found)
        counted = ", ".join(f"{method} on {count}" for method, count in winners.most_common())
        yield Sentence(f"Best on how many of {len(found)} data sets: {counted}.")
        return
    for group in found:
        whole = group[0].complete
        yield Sentence(("" if whole else "So far: ") + _about(_ranked(group)), "told" if whole else "unfinished")


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
    if best.std is None or second.std is None:
        return f"{where}: {_figure(best)}, then {_figure(second)}; single runs do not tell whether that is chance."
    spread = math.hypot(best.std, second.std)
    level = abs(best.mean - second.mean) <= spread
    relation = "is level with" if level else "is ahead of"
    return f"{where}: {_figure(best)} {relation} {_figure(second)}" + (f", of {len(ranked)} methods." if level else ".")


def _figure(record: Record) -> str:
    return f"{labels.method_label(record.method)} ({wording.ours(record)})"


def _intervals(scores: Sequence[Scores], in_paper: set[str]) -> Iterator[Sentence]:
    """What intervals hold, for each table that the paper does not have."""
    held: dict[str, list[str]] = {}
    for one in scores:
        share = one.metrics.get(f"coverage_{LEVEL}")
        if one.data not in in_paper and share is not None and share.mean is not None:
            held.setdefault(one.data, []).append(f"{100 * share.mean:.0f} % ({labels.method_label(one.method)})")
    if len(held) <= MANY:
        for data, methods in held.items():
            yield Sentence(f"{labels.data_label(data)}: {LEVEL} % intervals hold {', '.join(methods)} of the targets.")


def _against_baselines(scores: Sequence[Scores]) -> Iterator[Sentence]:
    """A warning for each data set on which networks have a larger error than a baseline."""
    losers: dict[tuple[str, str, float], list[str]] = {}
    for one in scores:
        error = one.metrics.get("rmse")
        for name, value in one.baselines.items():
            if error is not None and error.mean is not None and error.mean > value:
                method = labels.method_label(one.method)
                losers.setdefault((one.data, BASELINES[name], value), []).append(f"{method} ({error.mean:.4g})")
    for (data, baseline, value), methods in losers.items():
        text = f"{labels.data_label(data)}: {baseline}, RMSE {value:.4g}, does better than {', '.join(methods)}."
        yield Sentence(text, "differs")


def _against_paper(records: Sequence[Record]) -> Iterator[Sentence]:
    judged = [record.reproduced for record in records if record.paper and record.reproduced is not None]
    if judged:
        text = f"Reproduced: {sum(judged)} of {len(judged)} figures that can be compared with the paper's."
        yield Sentence(text, "reproduced" if all(judged) else "differs")
