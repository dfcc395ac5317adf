"""Figures of the process: training curves and the searches for hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.params import Cell
from pipeline.registry.methods import colour
from pipeline.report import labels, searches
from pipeline.report.drawing import Drawing, ink, legend_below, panels
from pipeline.report.results import Result
from pipeline.report.searches import Search
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
        caption = "Regression: training loss over the epochs, averaged over all networks of a cell."
        drawn.append(Drawing("training-regression", "training", caption, partial(_losses, tables)))
    for name, some in found.items():
        if name not in tables:
            caption = f"{name}: training over the epochs, one line per seed."
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
        label = labels.method_label(method)
        marker = "o" if len(points) < 3 else ""
        axis.plot(
            [x for x, _ in points], [y for _, y in points], marker=marker, color=colour(method), lw=1.1, label=label
        )


def _searches(results: Sequence[Result]) -> list[Drawing]:
    return [
        Drawing(
            f"search-{result.cell.name}",
            "search",
            f"{result.cell.name}: lowest validation objective of each trial and, where they differ, the number of "
            "epochs it ran before the search ended it; the cross marks the chosen setting.",
            partial(_search, Search(result.cell.name, result.trials, result.best["hyperparameters"]), result.cell),
        )
        for result in results
        if any(trial["objective"] is not None for trial in result.trials)
    ]


def _search(search: Search, cell: Cell) -> Figure:
    if len(search.axes) == 2:
        return _heat_map(search)
    return _line(search, next(iter(search.axes or cell.grid), ""), colour(cell.method))


def _heat_map(search: Search) -> Figure:
    (across, columns), (up, rows) = search.axes.items()
    tiles = [[search.best_at({across: column, up: row}) for column in columns] for row in rows]
    values = [[math.nan if tile is None else searches.objective(tile) for tile in row] for row in tiles]
    figure, (axis,) = panels(1, 1, 1.6 + 0.85 * len(columns), 1.3 + 0.5 * len(rows))
    finite = sorted(value for row in values for value in row if math.isfinite(value))
    # A diverged trial must not use up the colour scale; the upper quarter may share one colour.
    limit = finite[-1 - len(finite) // 4] if len(finite) > 3 else finite[-1]
    shown = [[value if math.isfinite(value) else math.nan for value in row] for row in values]
    axis.imshow(shown, cmap="viridis_r", vmin=finite[0], vmax=max(limit, finite[0] + 1e-12), aspect="auto")
    axis.set_xticks(range(len(columns)), [setting(value) for value in columns])
    axis.set_yticks(range(len(rows)), [setting(value) for value in rows])
    axis.set(xlabel=searches.label(across), ylabel=searches.label(up), title=search.cell)
    axis.grid(False)
    axis.invert_yaxis()
    stopped = len({trial["epochs"] for trial in search.trials}) > 1
    for y, row in enumerate(tiles):
        for x, tile in enumerate(row):
            text = searches.told(tile)
            if stopped and tile is not None:
                text += f"\n{tile['epochs']} epoch{'s' if tile['epochs'] != 1 else ''}"
            tone = _tone(values[y][x], (finite[0] + limit) / 2)
            axis.text(x, y, text, ha="center", va="center", fontsize=8, color=tone)
    if search.chosen.get(across) in columns and search.chosen.get(up) in rows:
        place = columns.index(search.chosen[across]), rows.index(search.chosen[up])
        axis.plot(place[0] + 0.4, place[1] + 0.3, "x", color=CHOSEN, ms=9, mew=2.5, clip_on=False)
    return figure


def _tone(value: float, middle: float) -> str:
    """The colour of a tile's text: tiles in the upper half of the range are dark."""
    if not math.isfinite(value):
        return ink()
    return "white" if value > middle else "black"


def _line(search: Search, name: str, tint: str) -> Figure:
    figure, (axis,) = panels(1, 1, 4.2, 2.6)
    values = search.values(name)
    found = [search.best_at({name: value}) for value in values]
    objectives = [math.nan if trial is None or trial["objective"] is None else trial["objective"] for trial in found]
    axis.plot(range(len(values)), objectives, "o-", color=tint)
    chosen = search.chosen.get(name)
    if chosen in values:
        place = values.index(chosen)
        axis.plot(place, objectives[place], "x", color=ink(), ms=10, mew=2.5)
    axis.set_xticks(range(len(values)), [setting(value) for value in values])
    axis.set(xlabel=searches.label(name), ylabel="objective", title=search.cell)
    return figure
