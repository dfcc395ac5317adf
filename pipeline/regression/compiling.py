"""Whether a training of many networks goes through ``torch.compile``."""

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
"""Steps of single networks: compiling takes ten to thirty seconds, and saves 0.2 ms of each (MNVI, 50 units)."""


def wanted(cell: Cell, folds: Sequence[Fold], plan: Sequence[Replica]) -> bool:
    """What ``resources.compile`` says; ``auto`` compiles what is long enough to pay for it, if it can.

    Compiled steps round differently, and hundreds of steps later a network is another one. So this is asked once for
    all networks of a cell, and the answer is part of what their state is known by.
    """
    if cell.resources.compile != "auto":
        return bool(cell.resources.compile)
    steps = sum(-(-len(folds[network.fold].y) // cell.experiment.batch_size) for network in plan)
    return steps * cell.experiment.epochs >= WORTH and available()


def available() -> bool:
    """Whether there is what torch's compiler calls on a CPU: a C++ compiler and Python's headers."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return shutil.which(os.environ.get("CXX", "g++")) is not None and headers.is_file()
