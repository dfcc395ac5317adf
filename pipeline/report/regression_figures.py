"""Figures of the regression half: log-likelihoods beside the paper's, and the coverage of predictive intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.registry.methods import colour
from pipeline.registry.metrics import LEVELS
from pipeline.report import labels
from pipeline.report.drawing import Drawing, ink, legend_below, panels
from pipeline.report.tables import Record


def drawings(records: Sequence[Record]) -> list[Drawing]:
    ran = [record for record in records if record.ran and record.mean is not None]
    likelihoods = _by_data([record for record in ran if record.metric == "log_likelihood"])
    coverages = _by_data([record for record in ran if record.metric.startswith("coverage_")])
    found = []
    if likelihoods:
        compared = any(record.paper for records in likelihoods.values() for record in records)
        shown = "ours (dot) and the paper's (ring)" if compared else "mean over runs"
        caption = f"Log-likelihood: {shown}, with one standard deviation. Right is better."
        found.append(Drawing("log_likelihood", "regression", caption, partial(_likelihoods, likelihoods)))
    if coverages:
        caption = (
            "Share of test targets inside central predictive intervals, less the nominal share, in percentage points: "
            "intervals are too wide above the dashed line and too narrow below it."
        )
        found.append(Drawing("coverage", "regression", caption, partial(_coverages, coverages)))
    return found


def _by_data(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.data, []).append(record)
    return found


def _likelihoods(found: dict[str, list[Record]]) -> Figure:
    most = max(map(len, found.values()))
    figure, axes = panels(len(found), 3, 3.1, 0.9 + 0.27 * most)
    for axis, (data, records) in zip(axes, found.items(), strict=True):
        axis.set_title(labels.data_label(data))
        axis.set_yticks(range(len(records)), [labels.method_label(record.method) for record in records])
        axis.set_ylim(len(records) - 0.4, -0.6)
        for place, record in enumerate(records):
            _likelihood(axis, place, record)
    legend_below(figure, axes)
    return figure


def _likelihood(axis: Axes, place: int, record: Record) -> None:
    assert record.mean is not None
    if record.paper:
        axis.errorbar(
            record.paper.mean, place + 0.16, xerr=record.paper.std, fmt="o", mfc="none", color=ink(), ms=5, lw=1
        )
    axis.errorbar(record.mean, place - 0.16, xerr=record.std, fmt="o", color=colour(record.method), ms=5, lw=1.4)


def _coverages(found: dict[str, list[Record]]) -> Figure:
    figure, axes = panels(len(found), 3, 3.1, 2.6)
    for axis, (data, records) in zip(axes, found.items(), strict=True):
        axis.set_title(labels.data_label(data))
        axis.axhline(0, ls="--", color=ink(), lw=0.8)
        methods = list(dict.fromkeys(record.method for record in records))
        for place, method in enumerate(methods):
            values = {record.metric: record for record in records if record.method == method}
            known = [level for level in LEVELS if f"coverage_{level}" in values]
            excess = [100 * (values[f"coverage_{level}"].mean or 0.0) - level for level in known]
            aside = (place - (len(methods) - 1) / 2) * 0.8 / len(methods)  # side by side, not on top of each other
            places = [LEVELS.index(level) + aside for level in known]
            axis.plot(places, excess, "o", color=colour(method), ms=5, label=labels.method_label(method))
        axis.set_xticks(range(len(LEVELS)), [f"{level} %" for level in LEVELS])
        axis.set_xlim(-0.6, len(LEVELS) - 0.4)
        axis.set_ylabel("excess coverage [points]")
    legend_below(figure, axes)
    return figure
