"""Regression tables, which ``prepare`` finds, checks, splits and writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.console import say
from pipeline.data import splits, table_sources
from pipeline.data.known_tables import digest
from pipeline.data.sources import CACHE
from pipeline.data.table_sources import RawTable
from pipeline.errors import StudyError
from pipeline.params import Dataset

ROWS_PER_FOLD = 10  # fewer test rows tell little


@dataclass(frozen=True)
class FoundTable:
    """A table on its way from a source to its folder."""

    x: np.ndarray
    y: np.ndarray
    tests: list[list[int]]
    summary: dict[str, Any]

    def write(self, folder: Path) -> None:
        np.save(folder / "x.npy", np.ascontiguousarray(self.x))
        np.save(folder / "y.npy", np.ascontiguousarray(self.y))
        files.write_json(folder / "splits.json", {"test": self.tests})


def find_table(dataset: Dataset, cache: Path = CACHE) -> FoundTable:
    """Finds, checks and splits the table that an entry of params.yaml describes."""
    raw, source = table_sources.find(dataset, cache)
    x, y = raw.values[:, raw.features], raw.values[:, raw.target]
    notes = _check(raw, x, y)
    tests = _tests(dataset, raw)
    _check_tests(raw, tests)
    if dataset.file is not None:
        notes += _doubts(dataset, raw)
    for note in notes:
        say(f"warning: {dataset.name}: {note}")
    summary = {
        "digest": digest(raw.values),
        "source": source,
        "rows": len(x),
        "features": x.shape[1],
        "columns": [raw.heading[column] for column in raw.features] if raw.heading else None,
        "splits": dataset.splits,
        "tests": len(tests),
        "notes": notes,
    }
    return FoundTable(x, y, tests, summary)


def _check(raw: RawTable, x: np.ndarray, y: np.ndarray) -> list[str]:
    if x.shape[1] == 0:
        raise StudyError(f"{raw.file}: there is no feature column besides the target")
    if np.ptp(y) == 0:
        raise StudyError(
            f"{raw.file}: the target, {_name(raw, raw.target)}, is {y[0]:g} in every row; name another column as target"
        )
    largest = float(np.finfo(np.float32).max)
    for column, values in ((raw.target, y), *zip(raw.features, x.T, strict=True)):
        if np.abs(values).max() > largest:
            raise StudyError(
                f"{raw.file}: {_name(raw, column)} has an entry of {np.abs(values).max():g}; networks compute in "
                f"float32, which ends at {largest:.1e}: use a larger unit"
            )
    constant = [_name(raw, raw.features[i]) for i in np.flatnonzero(np.ptp(x, axis=0) == 0)]
    return [f"{name} is the same in every row: it is zero after standardisation and tells nothing" for name in constant]


def _doubts(dataset: Dataset, raw: RawTable) -> list[str]:
    """What is odd about a table of the user's, but allowed."""
    rows, folds = len(raw.values), dataset.folds or 1
    found = [
        f"{_name(raw, column)} counts the rows; leave it out of the file unless it means something"
        for column in raw.features
        if rows > 2 and (np.diff(np.sort(raw.values[:, column])) == 1).all()
    ]
    if rows < ROWS_PER_FOLD * folds:
        tested = f"{folds} folds of {rows} rows have {rows // folds} test rows each, which tell little"
        fewer = max(2, rows // ROWS_PER_FOLD)
        advice = f"; write e.g. `folds: {fewer}` into datasets.{dataset.name}" if fewer < folds else ""
        found.append(f"{tested}{advice}")
    return found


def _check_tests(raw: RawTable, tests: list[list[int]]) -> None:
    rows = len(raw.values)
    for index, test in enumerate(tests):
        if rows - len(test) < 2:
            raise StudyError(
                f"{raw.file}: part {index} of its splits tests on {len(test)} of {rows} rows; expected at least two "
                "rows left for training"
            )


def _name(raw: RawTable, column: int) -> str:
    return (
        f"column {raw.heading[column]}" if raw.heading and raw.heading[column] else f"column {column} (counted from 0)"
    )


def _tests(dataset: Dataset, raw: RawTable) -> list[list[int]]:
    rows = len(raw.values)
    if dataset.splits == "standard":
        if raw.tests is None:
            raise StudyError(f"datasets.{dataset.name}.splits: {raw.file} has no index files; use kfold")
        return raw.tests
    folds = dataset.folds
    if folds is None or folds < 2:
        raise StudyError(f"datasets.{dataset.name}.folds: {folds}; `splits: kfold` needs 2 or more")
    if rows < folds:
        raise StudyError(f"datasets.{dataset.name}.folds: {folds} folds, but {raw.file} has only {rows} rows")
    return splits.kfold(rows, folds)
