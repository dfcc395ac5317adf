"""Decides whether a training of many networks uses ``torch.compile``."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from pipeline.params import Cell
from pipeline.regression.folds import Fold
from pipeline.regression.networks import Replica

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
    return steps * cell.experiment.epochs >= WORTH and available()


def available() -> bool:
    """Whether the machine has what torch's compiler needs on a CPU: a C++ compiler and Python's headers."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return shutil.which(os.environ.get("CXX", "g++")) is not None and headers.is_file()
