"""Tables 1 and 2 as records: our figure, the paper's figure, and whether ours reproduces it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.registry.metrics import HIGHER, SAME
from pipeline.report import labels, paper
from pipeline.report.results import Score, Scores

SIGMAS = 2.0
PRINTING = 1e-3  # the paper prints parameters with four digits, some truncated instead of rounded
ROUNDING = 1e-9  # a difference of exactly two standard deviations counts as within

REPRODUCED, DIFFERS, NOT_JUDGED, NOT_TO_THE_END, NOT_RUN = "reproduced", "differs", "told", "unfinished", "not-run"
NOT_RUN_TEXT, NOT_TO_THE_END_TEXT = "not run here", "not run to the end here"
NOT_FINITE_TEXT, NOT_IN_PAPER_TEXT = "not a finite number", "not in the paper"
OTHER_MACHINE_TEXT = "not compared: our machine is not the paper's"


@dataclass(frozen=True)
class Record:
    """One metric of one cell. ``mean`` is None if nothing ran or the figure is not finite."""

    data: str
    network: str
    method: str
    metric: str
    mean: float | None
    std: float | None
    runs: int
    folds: int | None
    paper: paper.Printed | None
    complete: bool
    reproduced: bool | None
    rows: int | None  # of the data set
    notes: tuple[str, ...]  # what a reader must know to compare the two figures
    cell: str | None  # None if the study has no such cell
    failed: int = 0  # networks whose runs are left out
    variant: str = ""  # the experiment's name if another experiment already has this place in the table

    @property
    def ran(self) -> bool:
        return self.runs > 0 or self.failed > 0

    @property
    def status(self) -> str:
        if not self.ran:
            return NOT_RUN
        if not self.complete:
            return NOT_TO_THE_END
        return {True: REPRODUCED, False: DIFFERS, None: NOT_JUDGED}[self.reproduced]

    def as_json(self) -> dict[str, Any]:
        kept = ("mean", "std", "runs", "folds", "rows", "complete", "reproduced", "cell")
        return {
            "data": self.data,
            "network": self.network,
            "method": self.method,
            "metric": self.metric,
            **{key: getattr(self, key) for key in kept},
            "note": "; ".join(self.notes),
            "paper_mean": self.paper.mean if self.paper else None,
            "paper_std": self.paper.std if self.paper else None,
            "paper_runs": paper_runs(self.data, self.metric) if self.paper else None,
            "paper_printed": self.paper.text if self.paper else None,
        }


def reproduced(metric: str, mean: float | None, std: float | None, printed: paper.Printed) -> bool | None:
    """Whether our figure is within two combined standard deviations of the paper's, or better; None if not compared."""
    better = labels.metric(metric).better
    if better is None:
        return None
    if mean is None:
        return False
    difference = mean - printed.mean
    if better == SAME:
        return abs(difference) <= (0 if printed.corrected else PRINTING * printed.mean)
    if difference >= 0 if better == HIGHER else difference <= 0:
        return True
    allowed = SIGMAS * math.hypot(std or 0.0, printed.std or 0.0)
    return abs(difference) <= allowed + ROUNDING * abs(printed.mean)


def paper_runs(data: str, metric: str) -> int:
    """The number of runs behind the paper's figure."""
    return paper.RUNS_1 if metric == "log_likelihood" else paper.runs_2(data)


def table_1(scores: Iterable[Scores]) -> list[Record]:
    """Every entry of the paper's Table 1 and all further regression results."""
    printed = {key: {"log_likelihood": entry} for key, entry in paper.TABLE_1.items()}
    return _table([one for one in scores if one.kind == "regression"], printed)


def table_2(scores: Iterable[Scores]) -> list[Record]:
    """Every entry of the paper's Table 2 and all further classification results."""
    return _table([one for one in scores if one.kind == "classification"], paper.TABLE_2)


def _table(scores: list[Scores], printed: dict[paper.Key, dict[str, paper.Printed]]) -> list[Record]:
    places: dict[paper.Key, list[Scores]] = {key: [] for key in printed}
    for one in scores:
        places.setdefault((one.data, one.network, one.method), []).append(one)
    records = []
    for key, found in places.items():
        entries = printed.get(key, {})
        # The first one takes the paper's place in the table, so complete results go first.
        ordered = sorted(found, key=lambda one: (not one.complete, -one.runs))
        for position, one in enumerate(ordered):
            records += _records(key, one, entries, variant=one.experiment if position else "")
        if not found:
            records += [_not_run(key, name, entry, NOT_RUN_TEXT, None) for name, entry in entries.items()]
    return records


def _records(key: paper.Key, one: Scores, entries: dict[str, paper.Printed], variant: str) -> list[Record]:
    if one.missing is not None:
        names = list(entries) or ["log_likelihood" if one.kind == "regression" else "misclassification"]
        note = f"{NOT_RUN_TEXT}: {one.missing}"
        return [_not_run(key, name, entries.get(name), note, one.cell, variant) for name in names]
    measured = [name for name in entries if name in one.metrics]
    measured += [name for name in one.metrics if name not in entries]
    unmeasured = [name for name in entries if name not in one.metrics]
    records = [_measured(key, name, one, entries.get(name), variant) for name in measured]
    return records + [_not_run(key, name, entries[name], NOT_RUN_TEXT, one.cell, variant) for name in unmeasured]


def _measured(key: paper.Key, name: str, one: Scores, printed: paper.Printed | None, variant: str) -> Record:
    score = one.metrics[name]
    judged = reproduced(name, score.mean, score.std, printed) if printed and one.complete else None
    if judged and one.failed:
        judged = False  # the figure leaves out the failures
    return Record(
        *key,
        metric=name,
        mean=score.mean,
        std=score.std,
        runs=one.runs,
        folds=one.folds,
        rows=one.rows,
        paper=printed,
        complete=one.complete,
        reproduced=judged,
        notes=tuple(_notes(key, name, score, one, printed, judged)),
        cell=one.cell,
        failed=one.failed,
        variant=variant,
    )


def _not_run(
    key: paper.Key, name: str, printed: paper.Printed | None, note: str, cell: str | None, variant: str = ""
) -> Record:
    nothing: dict[str, Any] = {"mean": None, "std": None, "runs": 0, "folds": None, "rows": None, "reproduced": None}
    notes = (note, *_about_paper(key, printed))
    return Record(*key, metric=name, paper=printed, complete=False, notes=notes, cell=cell, variant=variant, **nothing)


def _about_paper(key: paper.Key, printed: paper.Printed | None) -> Iterable[str]:
    """Oddities of the paper's figure, whether or not we have a figure of our own."""
    data, _, method = key
    if printed is None:
        return
    if (data, method) in paper.OUT_OF_LINE:
        yield "the paper's figure is out of line with other sources"
    if printed.corrected:
        yield f"the paper prints {printed.text}e6, which is a misprint"


def _notes(
    key: paper.Key, name: str, score: Score, one: Scores, printed: paper.Printed | None, judged: bool | None
) -> Iterable[str]:
    data = key[0]
    if not one.complete:
        yield NOT_TO_THE_END_TEXT
    if score.mean is None:
        yield NOT_FINITE_TEXT
    if one.failed:
        yield f"{one.failed} networks failed; their runs are left out"
    if one.deviation_over != "runs":
        yield f"± over {one.deviation_over}"
    if printed is None:
        yield NOT_IN_PAPER_TEXT
        return
    planned = paper_runs(data, name)
    if one.runs < planned and name != "parameters":
        yield f"{one.runs} of {planned} runs"
    if one.folds is not None and one.folds != paper.FOLDS_1:
        yield f"{one.folds} folds instead of the paper's {paper.FOLDS_1}"
    yield from _about_paper(key, printed)
    if name == "inference_ms":
        yield OTHER_MACHINE_TEXT
    if judged is False and score.mean is not None:
        shown = f"{score.mean * 10**printed.exponent:.{printed.decimals}f}"
        if shown == printed.text.partition(" ")[0]:
            yield "the same when rounded as printed"
