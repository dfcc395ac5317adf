"""Prepared tables as the stages read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline import files
from pipeline.data.summaries import read_array, read_summary


@dataclass(frozen=True)
class Table:
    x: Tensor  # float64 [rows, features]
    y: Tensor  # float64 [rows]
    tests: list[Tensor]  # rows to test on, one tensor per fold or split; the rest is for training
    summary: dict[str, Any]


def load_table(folder: str | Path) -> Table:
    """A prepared table."""
    folder = Path(folder)
    summary = read_summary(folder, "table")
    made_by = f"python -m pipeline.prepare {folder.name}"
    tests = files.read_json(folder / "splits.json", made_by)["test"]
    x, y = (torch.from_numpy(read_array(folder / name)) for name in ("x.npy", "y.npy"))
    return Table(x, y, [torch.tensor(rows) for rows in tests], summary)
