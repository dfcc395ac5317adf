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

CHOSEN = "#d1495b"
QUANTITIES = {"loss": "training loss", "validation_nll": "validation NLL", "validation_error": "validation error"}


def drawings(results: Sequence[Result]) -> list[Drawing]:
    return _training(results) + _searches(results)


def _training(results: Sequence[Result]) -> list[Drawing]:
    found = _by_experiment([result for result in results if result.history])
    tables = {name: some for name, some in found.items() if some[0].cell.kind == "regression"}
    drawn = []
    if tables:
        caption = "Regression: training loss over the epochs, the mean of all networks of a cell."
        drawn.append(Drawing("training-regression", "training", caption, partial(_losses, tables)))
    for name, some in found.items():
        if name not in tables:
            caption = f"{name}: training over the epochs, a line for each seed."
            drawn.append(Drawing(f"training-{name}", "training", caption, partial(_curves, some)))
    return drawn


def _by_experiment(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.scores.experiment, []).append(result)
    return found


def _losses(found: dict[str, list[Result]]) -> Figure:
    figure, axes = panels(len(found), 3, 3.1, 2.3)
    for axis, (name, some) in zip(axes, found.items(), strict=True):
        for result in some:
            _curve(axis, result, "loss")
        axis.set(title=name, xlabel="epoch")
    legend_below(figure, axes)
    return figure


def _curves(results: Sequence[Result]) -> Figure:
    epochs = [epoch for result in results for curve in result.history.values() for epoch in curve]
    known = [quantity for quantity in QUANTITIES if any(epoch.get(quantity) is not None for epoch in epochs)]
    figure, axes = panels(max(1, len(known)), 3, 3.1, 2.5)
    for axis, quantity in zip(axes, known, strict=False):
        for result in results:
            _curve(axis, result, quantity)
        axis.set(title=QUANTITIES[quantity], xlabel="epoch")
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


def _best_of(result: Result, place: dict[str, Any]) -> float | None:
    """The lowest objective at a point of the grid: NaN if all its trials failed, None if there was none."""
    objectives = [
        math.nan if trial["objective"] is None else trial["objective"]
        for trial in result.trials
        if all(trial["hyperparameters"].get(name) == value for name, value in place.items())
    ]
    return min(objectives, key=lambda value: (math.isnan(value), value), default=None)


def _heat_map(result: Result, across: str, up: str, varied: dict[str, list[Any]]) -> Figure:
    columns, rows = varied[across], varied[up]
    tiles = [[_best_of(result, {across: column, up: row}) for column in columns] for row in rows]
    values = [[math.nan if tile is None else tile for tile in row] for row in tiles]
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
    for y, row in enumerate(tiles):
        for x, tile in enumerate(row):
            tone = _tone(tile, (finite[0] + limit) / 2)
            axis.text(x, y, _objective(tile), ha="center", va="center", fontsize=8, color=tone)
    chosen = result.best["hyperparameters"]
    if chosen.get(across) in columns and chosen.get(up) in rows:
        place = columns.index(chosen[across]), rows.index(chosen[up])
        axis.plot(place[0], place[1] + 0.3, "x", color=CHOSEN, ms=9, mew=2.5, clip_on=False)
    return figure


def _objective(tile: float | None) -> str:
    if tile is None:
        return "not tried"
    return "failed" if math.isnan(tile) else f"{tile:.4g}"


def _tone(tile: float | None, middle: float) -> str:
    """Of the text on a tile: the tiles of the upper half are dark."""
    if tile is None or math.isnan(tile):
        return ink()
    return "white" if tile > middle else "black"


def _line(result: Result, name: str) -> Figure:
    figure, (axis,) = panels(1, 1, 4.2, 2.6)
    values = _values(result.trials, name)
    objectives = [math.nan if (best := _best_of(result, {name: value})) is None else best for value in values]
    axis.plot(range(len(values)), objectives, "o-", color=colour(result.cell.method))
    chosen = result.best["hyperparameters"].get(name)
    if chosen in values:
        place = values.index(chosen)
        axis.plot(place, objectives[place], "x", color=ink(), ms=10, mew=2.5)
    axis.set_xticks(range(len(values)), [setting(value) for value in values])
    axis.set(xlabel=_axis_label(name), ylabel="objective", title=result.cell.name)
    return figure


def _axis_label(name: str) -> str:
    return {"kappa_over_n": "κ/N", "prior_variance": "prior variance"}.get(name, name.replace("_", " "))
