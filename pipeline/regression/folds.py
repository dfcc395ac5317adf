"""The parts of a table that one network sees: rows for training and held-out rows for scoring."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.data.tablesets import Table, load_table
from pipeline.params import Cell

VALIDATION = 0.1  # part of a training fold that the search holds out


@dataclass(frozen=True)
class Fold:
    """Inputs, standardised by the mean and deviation of the training rows, and targets; float32.

    The targets that networks train on may be standardised, too. Held-out targets always keep their unit.
    """

    x: Tensor  # [rows, features]
    y: Tensor  # [rows]: (target - target_mean) / target_std
    held_x: Tensor
    held_y: Tensor  # in the target's unit
    mean: Tensor  # [features], float64: of the inputs before standardisation
    std: Tensor
    target_mean: float = 0.0
    target_std: float = 1.0


def seed(*what: object) -> int:
    """A seed that depends only on its name, so that adding runs or folds does not change the other seeds."""
    digest = hashlib.sha256(" ".join(map(str, what)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def load(cell: Cell) -> tuple[Table, list[Tensor]]:
    """The cell's table, and the test rows of the folds within the cell's limits."""
    table = load_table(cell.data)
    return table, table.tests[: cell.study.regression.folds]


def test_folds(table: Table, tests: list[Tensor], targets: str = "raw") -> list[Fold]:
    """Networks train on all rows outside a fold and are scored on the fold.

    Args:
        targets: `raw` or `standardised`, as in the experiment.
    """
    return [_fold(table, _others(table, rows), rows, targets) for rows in tests]


def validation_folds(table: Table, tests: list[Tensor], targets: str = "raw") -> list[Fold]:
    """Folds without the test rows: part of the training rows is held out in their place.

    Args:
        targets: as in :func:`test_folds`.
    """
    folds = []
    for index, rows in enumerate(tests):
        training = _others(table, rows)
        generator = torch.Generator().manual_seed(seed("validation", index))
        shuffled = training[torch.randperm(len(training), generator=generator)]
        held = max(1, round(VALIDATION * len(training)))
        folds.append(_fold(table, shuffled[held:].sort().values, shuffled[:held].sort().values, targets))
    return folds


def digest(folds: list[Fold]) -> str:
    """Digest of all rows that networks train on and are scored on."""
    found = hashlib.sha256()
    for fold in folds:
        for part in (fold.x, fold.y, fold.held_x, fold.held_y):
            found.update(f"{tuple(part.shape)}".encode() + part.numpy().tobytes())
    return found.hexdigest()


def _others(table: Table, rows: Tensor) -> Tensor:
    outside = torch.ones(len(table.y), dtype=torch.bool)
    outside[rows] = False
    return outside.nonzero().squeeze(1)


def _fold(table: Table, training: Tensor, held: Tensor, targets: str) -> Fold:
    x, y = torch.as_tensor(table.x), torch.as_tensor(table.y)
    mean, std = x[training].mean(0), x[training].std(0, correction=0)
    constant = x[training].amax(0) == x[training].amin(0)  # within the fold; std may then be a rounding error
    mean, std = torch.where(constant, x[training][0], mean), torch.where(constant, 1.0, std)
    x = ((x - mean) / std).float()
    unit = (0.0, 1.0)
    if targets == "standardised" and len(y[training].unique()) > 1:
        unit = (float(y[training].mean()), float(y[training].std(correction=0)))
    seen = ((y[training] - unit[0]) / unit[1]).float()
    return Fold(x[training], seen, x[held], y[held].float(), mean, std, *unit)
