"""Chooses the rows for testing and validation by fixed seeds, so that every run on every machine has the same rows.

The draws use numpy's RandomState because its streams never change with numpy's version.
"""

from __future__ import annotations

import numpy as np

from pipeline.errors import StudyError

SEED = 1
STANDARD_SPLITS = 20
STANDARD_TRAIN = 0.9


def kfold(rows: int, folds: int, seed: int = SEED) -> list[list[int]]:
    """Cross-validation: the test rows of each fold; every row is in exactly one fold."""
    order = np.random.RandomState(seed).permutation(rows)
    return [sorted(part.tolist()) for part in np.array_split(order, folds)]


def standard(rows: int, splits: int = STANDARD_SPLITS) -> list[list[int]]:
    """The test rows of the literature's random 90/10 splits, as its index files have them."""
    draw = np.random.RandomState(SEED)
    training = round(rows * STANDARD_TRAIN)
    return [sorted(draw.permutation(rows)[training:].tolist()) for _ in range(splits)]


def validation(rows: int, size: int, data: str) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation rows, both ascending."""
    train, held_out = shuffled(rows, size, data)
    return np.sort(train), np.sort(held_out)


def shuffled(rows: int, size: int, data: str) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation rows, both in random order."""
    if not 0 <= size < rows:
        raise StudyError(
            f"datasets.{data}.validation: {size} of {rows} training images; expected at least 0 and fewer than all"
        )
    order = np.random.RandomState(SEED).permutation(rows)
    return order[size:], order[:size]
