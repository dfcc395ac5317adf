"""Figures of the classification half: rejection, reliability, and uncertainty on known and foreign images."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.registry.methods import colour
from pipeline.registry.metrics import METRICS
from pipeline.report import labels
from pipeline.report.drawing import Drawing, ink, legend_below, panels
from pipeline.report.results import Curved, Result

GROUPS = {"correct": "#3f9f6d", "wrong": "#d1495b", "ood": "#3d8bd4"}
KINDS = ("total", "aleatoric", "epistemic")
DAMAGE_METRICS = ("nll", "ece", "aumrc")
NOTHING = 1e-5  # nats; a deterministic network has no epistemic uncertainty


def drawings(results: Sequence[Result]) -> list[Drawing]:
    with_curves = [result for result in results if result.curves]
    found = comparisons([Curved(result.scores, result.curves) for result in with_curves])
    for result in with_curves:
        if _shown(result):
            caption = f"{title(result)}: uncertainty of right and wrong predictions, and of images of other data sets."
            found.append(
                Drawing(f"uncertainty-{result.cell.name}", "uncertainty", caption, partial(_uncertainty, result))
            )
    return found


def comparisons(curved: Sequence[Curved]) -> list[Drawing]:
    """Figures that show all cells beside each other."""
    found = []
    if curved:
        caption = "Misclassification of the remaining images when the most uncertain ones are rejected first."
        found.append(Drawing("rejection", "classification", caption, partial(_rejection, curved)))
        caption = "Accuracy against confidence in 20 bins; the dashed line is perfect calibration."
        found.append(Drawing("reliability", "classification", caption, partial(_reliability, curved)))
    with_damage = [one for one in curved if "severity" in one.curves]
    if with_damage:
        caption = (
            "Test images that get worse: the mean over eight kinds of damage (noise, blur, brightness, contrast, "
            "pixels, JPEG) against its severity; at 0 they are undamaged. Lower is better."
        )
        found.append(Drawing("severity", "classification", caption, partial(_severity, with_damage)))
    return found


def title(result: Result) -> str:
    return f"{experiment(result)}, {labels.method_label(result.cell.method)}"


def experiment(result: Result | Curved) -> str:
    scores = result.scores
    return f"{labels.network_label(scores.network)} on {labels.data_label(scores.data)}"


def _rejection(results: Sequence[Curved]) -> Figure:
    names = list(dict.fromkeys(result.scores.experiment for result in results))
    figure, axes = panels(len(names), 2, 4.6, 3.0)
    for axis, name in zip(axes, names, strict=True):
        for result in results:
            if result.scores.experiment != name:
                continue
            axis.set_title(experiment(result))
            curve, method = result.curves["rejection"], result.scores.method
            rates, errors = ([100 * value for value in curve[key]] for key in ("rate", "misclassification"))
            axis.plot(rates, errors, color=colour(method), lw=1.5, label=labels.method_label(method))
        axis.set_xlabel("rejected [%]")
        axis.set_ylabel("misclassified [%]")
        axis.set_ylim(bottom=0)
    legend_below(figure, axes)
    return figure


def _reliability(results: Sequence[Curved]) -> Figure:
    figure, axes = panels(len(results), 4, 2.4, 2.5)
    for axis, result in zip(axes, results, strict=True):
        curve, method = result.curves["reliability"], result.scores.method
        # A bin without an image has no accuracy.
        points = [pair for pair in zip(curve["confidence"], curve["accuracy"], strict=True) if None not in pair]
        axis.plot((0, 1), (0, 1), "--", color=ink(), lw=0.8)
        axis.plot([c for c, _ in points], [a for _, a in points], "o-", color=colour(method), ms=3, lw=1.2)
        axis.set_title(f"{experiment(result)}\n{labels.method_label(method)}", fontsize=8)
        axis.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal", xlabel="confidence", ylabel="accuracy")
    return figure


def _severity(results: Sequence[Curved]) -> Figure:
    names = list(dict.fromkeys(result.scores.experiment for result in results))
    figure, axes = panels(len(names) * len(DAMAGE_METRICS), len(DAMAGE_METRICS), 3.2, 2.6)
    columns = [(name, metric) for name in names for metric in DAMAGE_METRICS]
    for axis, (name, metric) in zip(axes, columns, strict=True):
        for result in (one for one in results if one.scores.experiment == name):
            kinds = result.curves["severity"][metric].values()
            means = [statistics.fmean(values) for values in zip(*kinds, strict=True)]
            method = result.scores.method
            axis.plot(
                range(len(means)), means, "o-", ms=3, lw=1.5, color=colour(method), label=labels.method_label(method)
            )
            axis.set_title(experiment(result), fontsize=8)
        axis.set(xlabel="severity", ylabel=METRICS[metric].label)
        axis.set_ylim(bottom=0)
    legend_below(figure, axes)
    return figure


def _shown(result: Result) -> dict[str, dict[str, Any]]:
    histograms = result.curves["uncertainty"]
    return {kind: histograms[kind] for kind in KINDS if kind in histograms and histograms[kind]["edges"][-1] > NOTHING}


def _uncertainty(result: Result) -> Figure:
    histograms = _shown(result)
    figure, axes = panels(len(histograms), 3, 3.1, 2.5)
    for axis, (kind, histogram) in zip(axes, histograms.items(), strict=True):
        _histogram(axis, histogram)
        axis.set_title(kind)
        axis.set_xlabel("nats")
    axes[0].set_ylabel("density")
    legend_below(figure, axes)
    return figure


def _histogram(axis: Axes, histogram: dict[str, Any]) -> None:
    edges = histogram["edges"]
    for group, tone in GROUPS.items():
        counts = histogram.get(group)
        if counts and sum(counts):
            widths = [right - left for left, right in pairwise(edges)]
            density = [count / sum(counts) / width for count, width in zip(counts, widths, strict=True)]
            axis.stairs(density, edges, color=tone, fill=True, alpha=0.25)
            axis.stairs(density, edges, color=tone, lw=1.2, label={"ood": "other data"}.get(group, group))
    axis.set_yscale("log")
