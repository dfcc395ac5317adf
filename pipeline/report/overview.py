"""Two small tables in Markdown: the figures of the README, and a comparison of the methods."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from pipeline.report import labels, paper, wording
from pipeline.report.markdown import line
from pipeline.report.tables import Record

IMAGES = "mnist"  # the paper's smallest set of images, on which all methods ran to the end
METRICS = ("misclassification", "nll", "ece", "auroc_fashion_mnist", "parameters")
NOTHING = "Not run here.\n"


def summary(records: Sequence[Record]) -> str:
    """One row per method with what ran to the end on :data:`IMAGES`; the paper's figures in brackets."""
    shown = _finished(records)
    if not shown:
        return NOTHING
    metrics = [name for name in METRICS if any(record.metric == name for record in shown)]
    table = [["method", "runs", *(labels.label(IMAGES, name) for name in metrics)]]
    for method in _methods(shown):
        found = {record.metric: record for record in shown if record.method == method}
        runs = max(record.runs for record in found.values())
        table.append([labels.method_label(method), str(runs), *(_figure(found.get(name), True) for name in metrics)])
    return _written(table)


def comparison(table_1: Sequence[Record], table_2: Sequence[Record]) -> str:
    """One row per method: the mean log-likelihood over the paper's tables, and the figures on :data:`IMAGES`."""
    images = _finished(table_2)
    tables = [record for record in table_1 if record.metric == "log_likelihood" and record.data in paper.DATA_1]
    tables = [record for record in tables if record.complete and record.mean is not None and not record.variant]
    if not images and not tables:
        return NOTHING
    metrics = ("nll", "ece", "auroc_fashion_mnist", "parameters")
    heads = [f"{labels.label(IMAGES, name)}, {labels.data_label(IMAGES)}" for name in metrics]
    table = [["method", f"mean log-likelihood, {len(paper.DATA_1)} tables", *heads]]
    for method in _methods([*tables, *images]):
        likelihoods = [record.mean for record in tables if record.method == method and record.mean is not None]
        whole = len(likelihoods) == len(paper.DATA_1)
        found = {record.metric: record for record in images if record.method == method}
        score = wording.number(mean(likelihoods), 3) if whole else ""
        table.append([labels.method_label(method), score, *(_figure(found.get(name)) for name in metrics)])
    return _written(table)


def _finished(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.data == IMAGES and record.ran and record.complete]


def _methods(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(record.method for record in records))


def _figure(record: Record | None, with_paper: bool = False) -> str:
    if record is None:
        return ""
    return wording.ours(record) + (f" ({wording.theirs(record)})" if with_paper and record.paper else "")


def _written(table: list[list[str]]) -> str:
    return "\n".join(map(line, [table[0], ["---"] * len(table[0]), *table[1:]])) + "\n"
