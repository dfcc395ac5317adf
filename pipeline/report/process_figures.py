"""Figures of how the results came about: training curves and the searches for hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report import metrics
from pipeline.report.drawing import Drawing, colour, ink, legend_below, panels
from pipeline.report.results import Result
from pipeline.report.wording import setting

QUANTITIES = {"loss": "training loss", "validation_nll": "validation NLL", "validation_error": "validation error"}


def drawings(results: Sequence[Result]) -> list[Drawing]:
    return _training(results) + _searches(results)


def _training(results: Sequence[Result]) -> list[Drawing]:
    found: dict[str, list[Result]] = {}
    for result in results:
        if result.history:
            found.setdefault(result.scores.experiment, []).append(result)
    return [
        Drawing(
            f"training-{name}",
            "training",
            f"{name}: training over the epochs, a line for each seed.",
            partial(_curves, some),
        )
        for name, some in found.items()
    ]


def _curves(results: Sequence[Result]) -> Figure:
    epochs = [epoch for result in results for curve in result.history.values() for epoch in curve]
    known = [quantity for quantity in QUANTITIES if any(epoch.get(quantity) is not None for epoch in epochs)]
    figure, axes = panels(max(1, len(known)), 3, 3.1, 2.5)
    for axis, quantity in zip(axes, known, strict=False):
        for result in results:
            _curve(axis, result, quantity)
        axis.set_title(QUANTITIES[quantity])
        axis.set_xlabel("epoch")
    legend_below(figure, axes)
    return figure


def _curve(axis: Axes, result: Result, quantity: str) -> None:
    method = result.cell.method
    for curve in result.history.values():
        points = [(epoch["epoch"], epoch[quantity]) for epoch in curve if epoch.get(quantity) is not None]
        label = metrics.method_label(method)
        marker = "o" if len(points) < 3 else ""
        axis.plot(
            [x for x, _ in points], [y for _, y in points], marker=marker, color=colour(method), lw=1.1, label=label
        )


def _searches(results: Sequence[Result]) -> list[Drawing]:
    return [
        Drawing(
            f"search-{result.cell.name}",
            "search",
            f"{result.cell.name}: validation objective (lower is better) over the grid; the cross is what was chosen.",
            partial(_search, result),
        )
        for result in results
        if any(trial["objective"] is not None for trial in result.trials)
    ]


def _search(result: Result) -> Figure:
    varied = {name: values for name in result.cell.grid if len(values := _values(result.trials, name)) > 1}
    # Two axes are what a picture has; of a larger grid each point shows its best trial.
    names = sorted(varied, key=lambda name: (name != "kappa_over_n", name != "prior_variance"))[:2]
    if len(names) == 2:
        return _heat_map(result, names[0], names[1], varied)
    return _line(result, names[0] if names else next(iter(result.cell.grid), ""))


def _values(trials: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return sorted({trial["hyperparameters"][name] for trial in trials if name in trial["hyperparameters"]})


def _best_of(result: Result, place: dict[str, Any]) -> float:
    objectives = [
        trial["objective"]
        for trial in result.trials
        if trial["objective"] is not None
        and all(trial["hyperparameters"].get(name) == value for name, value in place.items())
    ]
    return min(objectives, default=math.nan)


def _heat_map(result: Result, across: str, up: str, varied: dict[str, list[Any]]) -> Figure:
    columns, rows = varied[across], varied[up]
    values = [[_best_of(result, {across: column, up: row}) for column in columns] for row in rows]
    figure, (axis,) = panels(1, 1, 1.6 + 0.85 * len(columns), 1.3 + 0.5 * len(rows))
    finite = sorted(value for row in values for value in row if math.isfinite(value))
    # A diverged trial must not take all the colours; the upper quarter may share one.
    limit = finite[-1 - len(finite) // 4] if len(finite) > 3 else finite[-1]
    axis.imshow(values, cmap="viridis_r", vmin=finite[0], vmax=max(limit, finite[0] + 1e-12), aspect="auto")
    axis.set_xticks(range(len(columns)), [setting(value) for value in columns])
    axis.set_yticks(range(len(rows)), [setting(value) for value in rows])
    axis.set(xlabel=_axis_label(across), ylabel=_axis_label(up), title=result.cell.name)
    axis.grid(False)
    axis.invert_yaxis()
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            text = f"{value:.4g}" if math.isfinite(value) else "failed"
            axis.text(x, y, text, ha="center", va="center", fontsize=8, color=_tone(value, (finite[0] + limit) / 2))
    chosen = result.best["hyperparameters"]
    if chosen.get(across) in columns and chosen.get(up) in rows:
        place = columns.index(chosen[across]), rows.index(chosen[up])
        axis.plot(place[0], place[1] + 0.3, "x", color="#d1495b", ms=9, mew=2.5, clip_on=False)
    return figure


def _tone(value: float, middle: float) -> str:
    """Of the text on a tile: the tiles of the upper half are dark."""
    if not math.isfinite(value):
        return ink()
    return "white" if value > middle else "black"


def _line(result: Result, name: str) -> Figure:
    figure, (axis,) = panels(1, 1, 4.2, 2.6)
    values = _values(result.trials, name)
    objectives = [_best_of(result, {name: value}) for value in values]
    axis.plot(range(len(values)), objectives, "o-", color=colour(result.cell.method))
    chosen = result.best["hyperparameters"].get(name)
    if chosen in values:
        axis.plot(values.index(chosen), objectives[values.index(chosen)], "x", color=ink(), ms=10, mew=2.5)
    axis.set_xticks(range(len(values)), [setting(value) for value in values])
    axis.set(xlabel=_axis_label(name), ylabel="objective", title=result.cell.name)
    return figure


def _axis_label(name: str) -> str:
    return {"kappa_over_n": "κ/N", "prior_variance": "prior variance"}.get(name, name.replace("_", " "))
