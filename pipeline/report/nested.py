"""What a search gains from rows that it should not see: the figures of `python -m tools.nested`, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import run_statistics
from pipeline.files import read_json
from pipeline.report.markdown import line
from pipeline.report.wording import number, setting

FOLDER = "nested"
Table = list[list[float | None]]  # [run][fold]; None where a network failed


@dataclass(frozen=True)
class Point:
    """One point of the grid: its log-likelihoods on validation and test rows."""

    hyperparameters: Mapping[str, Any]
    validation: Table
    test: Table


@dataclass(frozen=True)
class Nested:
    """The grid of one cell, with everything that the ways of choosing need."""

    cell: str
    runs: int
    study: Mapping[str, Any]
    points: Sequence[Point]
    cpu_seconds: float

    @property
    def command(self) -> str:
        return f"python -m tools.nested {self.cell} --runs {self.runs}"


def path_of(results: Path, cell: str) -> Path:
    """Where the figures of a cell are."""
    return results / FOLDER / f"{cell}.json"


def found_nested(root: Path) -> list[Nested]:
    """The nested searches below a results folder."""
    found = []
    for path in sorted((root / FOLDER).glob("*.json")):
        kept = read_json(path, f"python -m tools.nested {path.stem}")
        points = [Point(one["hyperparameters"], one["validation"], one["test"]) for one in kept["points"]]
        found.append(
            Nested(path.stem, kept["runs"], kept["study"], points, sum(p["cpu_seconds"] for p in kept["points"]))
        )
    return found


def ways(nested: Nested) -> dict[str, tuple[str, dict[str, float | None]]]:
    """Each way of choosing a point of the grid: what it chooses, and the test log-likelihood over runs."""
    points = nested.points
    folds = range(len(points[0].test[0]))
    one_for_all = max(points, key=lambda point: _mean(point.validation, folds))
    each = [max(points, key=lambda point: _mean(point.validation, [fold])) for fold in folds]
    by_test = max(points, key=lambda point: _mean(point.test, folds))
    found = {
        "one point for all folds, by the validation rows of all": (_told(one_for_all), [one_for_all for _ in folds]),
        "nested: a point for each fold, by its own validation rows": (_counted(each), each),
        "not allowed: one point, by the test rows": (_told(by_test), [by_test for _ in folds]),
    }
    fixed = next(
        (point for point in points if all(nested.study.get(k) == v for k, v in point.hyperparameters.items())), None
    )
    if fixed is not None:
        found = {"no search: the study's own settings": (_told(fixed), [fixed for _ in folds]), **found}
    return {way: (chosen, _over_runs(of_folds)) for way, (chosen, of_folds) in found.items()}


def _over_runs(of_folds: Sequence[Point]) -> dict[str, Any]:
    """Mean and deviation over runs of the means over folds; a run with a network that failed does not count."""
    runs = [[point.test[run][fold] for fold, point in enumerate(of_folds)] for run in range(len(of_folds[0].test))]
    whole = [[value for value in run if value is not None] for run in runs]
    return run_statistics.over_runs([statistics.fmean(run) for run in whole if len(run) == len(of_folds)])


def _mean(scores: Table, folds: Sequence[int] | range) -> float:
    """Mean over runs and these folds; a failed network makes the point the worst."""
    values = [run[fold] for run in scores for fold in folds]
    return float("-inf") if None in values else statistics.fmean(value for value in values if value is not None)


def _told(point: Point) -> str:
    return ", ".join(f"{key} {setting(value)}" for key, value in point.hyperparameters.items())


def _counted(points: Sequence[Point]) -> str:
    counts: dict[str, int] = {}
    for point in points:
        counts[_told(point)] = counts.get(_told(point), 0) + 1
    ordered = sorted(counts, key=lambda name: -counts[name])
    return "; ".join(f"{name} ({counts[name]} folds)" if counts[name] > 1 else f"{name} (1 fold)" for name in ordered)


def table(found: Sequence[Nested]) -> str:
    """One table for each cell, one row for each way of choosing."""
    return "\n".join(_of_cell(nested) for nested in found)


def _of_cell(nested: Nested) -> str:
    rows = [["how the hyperparameters are chosen", "chosen", "log-likelihood on the test rows"], ["---"] * 3]
    for way, (chosen, score) in ways(nested).items():
        rows.append([way, chosen, told(score)])
    made = f"Made in {nested.cpu_seconds / 60:.1f} CPU minutes, on one thread, by `{nested.command}`."
    return f"**{nested.cell}**\n\n" + "\n".join(map(line, rows)) + f"\n\n{made}\n"


def told(score: Mapping[str, float | None]) -> str:
    """A mean and its deviation over runs."""
    mean, std = score["mean"], score["std"]
    if mean is None:
        return "no complete run"
    return number(mean, 3) + ("" if std is None else f" ± {number(std, 3)}")
