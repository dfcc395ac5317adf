"""Decides whether a training of many networks uses ``torch.compile``."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline import compiler
from pipeline.params import Cell
from pipeline.regression.cell_networks import Replica
from pipeline.regression.folds import Fold

WORTH = 100_000
"""Steps of single networks, above which compiling pays: it takes ten to thirty seconds and saves 0.2 ms per step (MNVI,
50 units).
"""


def wanted(cell: Cell, folds: Sequence[Fold], plan: Sequence[Replica]) -> bool:
    """The value of ``resources.compile``; ``auto`` compiles trainings that are long enough, if a compiler is available.

    Compiled steps round differently, so after hundreds of steps the networks differ. The decision is therefore made
    once for all networks of a cell, and their saved state is tied to it.
    """
    if cell.resources.compile != "auto":
        return bool(cell.resources.compile)
    steps = sum(-(-len(folds[network.fold].y) // cell.experiment.batch_size) for network in plan)
    return steps * cell.experiment.epochs >= WORTH and compiler.available()
