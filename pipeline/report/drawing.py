"""Shared by all figures: colours, panels, and files for light and dark pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

THEMES = {"light": ("#ffffff", "#20242a", "#c9ced6"), "dark": ("#1a1d22", "#dfe3e8", "#444b55")}
DPI = 110


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn in any theme; ``section`` is the part of the page that shows it."""

    name: str
    section: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Drawn:
    drawing: Drawing
    light: Path
    dark: Path


def panels(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` axes in rows; superfluous axes of the last row stay blank."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for blank in axes[count:]:
        blank.set_axis_off()
    return figure, axes[:count]


def legend_below(figure: Figure, axes: list[Axes]) -> None:
    """One legend for all panels, each label once."""
    found: dict[str, Artist] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(map(str, labels), handles, strict=True))
    if found:
        columns = min(len(found), max(2, round(figure.get_figwidth() / 1.7)))
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)


def save(drawing: Drawing, folder: Path) -> Drawn:
    light, dark = folder / f"{drawing.name}.png", folder / "dark" / f"{drawing.name}.png"
    for path, theme in ((light, "light"), (dark, "dark")):
        write(drawing, path, theme)
    return Drawn(drawing, light, dark)


def write(drawing: Drawing, path: Path, theme: str = "light") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_style(theme)):
        figure = drawing.draw()
        # Leave out matplotlib's version, so that the same figures give the same bytes.
        FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def _style(theme: str) -> dict[Any, Any]:
    back, ink, line = THEMES[theme]
    return {
        "figure.dpi": DPI,
        "figure.facecolor": back,
        "axes.facecolor": back,
        "savefig.facecolor": back,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "axes.edgecolor": line,
        "grid.color": line,
        "grid.linewidth": 0.6,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "font.size": 9,
    }


def ink() -> str:
    """The text colour of the current theme."""
    return str(matplotlib.rcParams["text.color"])
