"""Whether a training of many networks goes through ``torch.compile``."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from pipeline.params import Cell

WORTH = 100_000
"""Steps of single networks: compiling takes ten to thirty seconds, and saves 0.2 ms of each (MNVI, 50 units)."""


def wanted(cell: Cell, data: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """What ``resources.compile`` says; ``auto`` compiles what is long enough to pay for it, if it can."""
    if cell.resources.compile != "auto":
        return bool(cell.resources.compile)
    batches = sum(-(-len(targets) // cell.experiment.batch_size) for _, targets in data)
    return batches * cell.experiment.epochs >= WORTH and available()


def available() -> bool:
    """Whether there is what torch's compiler calls on a CPU: a C++ compiler and Python's headers."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return shutil.which(os.environ.get("CXX", "g++")) is not None and headers.is_file()
