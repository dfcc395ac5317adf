"""Two small tables in Markdown: the figures of the README, and a comparison of the methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from pipeline.report import labels, paper, wording
from pipeline.report.markdown import line
from pipeline.report.tables import Record

NOTHING = "Not run here.\n"


@dataclass(frozen=True)
class Excerpt:
    """The part of Table 2 that a small table shows: one network on one set of images, and some metrics."""

    data: str
    network: str
    metrics: tuple[str, ...]


MNIST = Excerpt("mnist", "lenet", ("misclassification", "nll", "ece", "auroc_fashion_mnist", "parameters"))
CIFAR = Excerpt("cifar10", "resnet20", ("misclassification", "nll", "ece", "aumrc", "auroc_cifar100"))


def summary(records: Sequence[Record], excerpt: Excerpt) -> str:
    """One row per method with what ran to the end; the paper's figures in brackets."""
    shown = _finished(records, excerpt)
    if not shown:
        return NOTHING
    metrics = [name for name in excerpt.metrics if any(record.metric == name for record in shown)]
    table = [["method", "runs", *(labels.label(excerpt.data, name) for name in metrics)]]
    for method in _methods(shown):
        found = {record.metric: record for record in shown if record.method == method}
        runs = max(record.runs for record in found.values())
        table.append([labels.method_label(method), str(runs), *(_figure(found.get(name), True) for name in metrics)])
    return _written(table)


def comparison(table_1: Sequence[Record], table_2: Sequence[Record]) -> str:
    """One row per method: the mean log-likelihood over the paper's tables, and the figures on MNIST."""
    images = _finished(table_2, MNIST)
    tables = [record for record in table_1 if record.metric == "log_likelihood" and record.data in paper.DATA_1]
    tables = [record for record in tables if record.complete and record.mean is not None and not record.variant]
    if not images and not tables:
        return NOTHING
    metrics = ("nll", "ece", "auroc_fashion_mnist", "parameters")
    heads = [f"{labels.label(MNIST.data, name)}, {labels.data_label(MNIST.data)}" for name in metrics]
    table = [["method", f"mean log-likelihood, {len(paper.DATA_1)} tables", *heads]]
    for method in _methods([*tables, *images]):
        likelihoods = [record.mean for record in tables if record.method == method and record.mean is not None]
        whole = len(likelihoods) == len(paper.DATA_1)
        found = {record.metric: record for record in images if record.method == method}
        score = wording.number(mean(likelihoods), 3) if whole else ""
        table.append([labels.method_label(method), score, *(_figure(found.get(name)) for name in metrics)])
    return _written(table)


def _finished(records: Sequence[Record], excerpt: Excerpt) -> list[Record]:
    wanted = excerpt.data, excerpt.network
    return [one for one in records if (one.data, one.network) == wanted and one.ran and one.complete]


def _methods(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(record.method for record in records))


def _figure(record: Record | None, with_paper: bool = False) -> str:
    if record is None:
        return ""
    return wording.ours(record) + (f" ({wording.theirs(record)})" if with_paper and record.paper else "")


def _written(table: list[list[str]]) -> str:
    return "\n".join(map(line, [table[0], ["---"] * len(table[0]), *table[1:]])) + "\n"
