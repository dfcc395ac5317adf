"""Lays out the records in rows and columns; the page and the Markdown files share this layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.report import labels, paper
from pipeline.report.tables import Record

T = TypeVar("T")


@dataclass(frozen=True)
class Grid:
    """A table of records; None where there is nothing to show."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[Record | None]]]

    def ran(self) -> Grid:
        """The rows and columns in which something ran."""
        kept = [i for i in range(len(self.columns)) if any(_ran(row[i]) for _, row in self.rows)]
        rows = [(head, [row[i] for i in kept]) for head, row in self.rows if any(map(_ran, row))]
        return Grid(self.title, [self.columns[i] for i in kept], rows)

    @property
    def records(self) -> list[Record]:
        return [record for _, row in self.rows for record in row if record is not None]


def _ran(record: Record | None) -> bool:
    return record is not None and record.ran


def table_1(records: Sequence[Record]) -> Grid:
    """Log-likelihoods: one row per method, one column per data set of the paper."""
    known = [record for record in records if record.data in paper.DATA_1]
    return _likelihoods("Table 1: log-likelihood on the UCI data sets", known)


def further_data(records: Sequence[Record]) -> Grid | None:
    """Log-likelihoods on data sets that the paper does not have."""
    further = [record for record in records if record.data not in paper.DATA_1]
    return _likelihoods("Log-likelihood on further data sets", further) if further else None


def _likelihoods(title: str, records: Sequence[Record]) -> Grid:
    found = {(_method(record), record.data): record for record in records if record.metric == "log_likelihood"}
    columns = _in_order(data for _, data in found)
    rows = _in_order(method for method, _ in found)
    return Grid(
        title,
        [_heading(data, records) for data in columns],
        [(method, [found.get((method, data)) for data in columns]) for method in rows],
    )


def _heading(data: str, records: Sequence[Record]) -> str:
    """The data set with the number of rows that were really used, which may differ from the one that papers print."""
    rows = next((record.rows for record in records if record.data == data and record.rows), None)
    return labels.data_label(data) + (f" (N = {rows:,})" if rows else "")


def further_regression(records: Sequence[Record]) -> Grid | None:
    """The metrics of regression cells that the paper does not have."""
    further = [record for record in records if record.ran and record.metric != "log_likelihood"]
    if not further:
        return None
    found = {(record.data, _method(record), record.metric): record for record in further}
    columns = _in_order(record.metric for record in further)
    rows = sorted(_in_order((record.data, _method(record)) for record in further), key=lambda row: row[0])
    return Grid(
        "Errors and coverage of the regression cells",
        [labels.label("", name) for name in columns],
        [
            (f"{labels.data_label(data)}, {method}", [found.get((data, method, name)) for name in columns])
            for data, method in rows
        ],
    )


def table_2(records: Sequence[Record]) -> list[Grid]:
    """One grid per network and data set, with one row per metric and one column per method."""
    return [
        _block(data, network, [one for one in records if (one.data, one.network) == (data, network)])
        for data, network in _in_order((record.data, record.network) for record in records)
    ]


def _block(data: str, network: str, records: Sequence[Record]) -> Grid:
    found = {(record.metric, _method(record)): record for record in records}
    columns = _in_order(_method(record) for record in records)
    measured = _in_order(record.metric for record in records)
    order = [name for name in paper.METRICS_2 if name in measured]
    order += [name for name in measured if name not in order]
    return Grid(
        f"{labels.network_label(network)} on {labels.data_label(data)}",
        columns,
        [(labels.label(data, name), [found.get((name, method)) for method in columns]) for name in order],
    )


def _method(record: Record) -> str:
    label = labels.method_label(record.method)
    return f"{label} ({record.variant})" if record.variant else label


def _in_order(items: Iterable[T]) -> list[T]:
    """Each item once, in the order of first appearance."""
    return list(dict.fromkeys(items))
