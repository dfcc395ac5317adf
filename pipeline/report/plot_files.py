"""Writes curves as CSV files, from which DVC draws its own plots and compares studies."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.report.results import Result
from pipeline.report.tables import Record


def write(folder: Path, likelihoods: Sequence[Record], results: Sequence[Result]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ran = [record for record in likelihoods if record.metric == "log_likelihood" and record.ran]
    _write(
        folder / "log_likelihood.csv",
        ("cell", "mean", "std", "paper"),
        ((one.cell, one.mean, one.std, one.paper.mean if one.paper else None) for one in ran),
    )
    for name, columns in {
        "rejection": ("rate", "misclassification"),
        "reliability": ("confidence", "accuracy"),
    }.items():
        _write(folder / f"{name}.csv", ("cell", *columns), _points(results, name, columns))


def _points(results: Sequence[Result], name: str, columns: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    for result in results:
        if result.curves:
            curve = result.curves[name]
            points = zip(*(curve[column] for column in columns), strict=True)
            # A bin without an image has neither confidence nor accuracy.
            yield from ((result.cell.name, *point) for point in points if None not in point)


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
