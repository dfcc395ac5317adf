"""What a network has to beat: the mean of the targets, and least squares."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.regression.folds import Fold

NAMES = {"mean": "the mean of the training targets", "least_squares": "least squares"}


def rmse(folds: Sequence[Fold]) -> dict[str, float]:
    """Root mean squared errors on the held-out rows, each averaged over the folds."""
    found = [_of_fold(fold) for fold in folds]
    return {name: statistics.fmean(one[name] for one in found) for name in NAMES}


def verdict(cell: str, reached: float, baselines: dict[str, float], targets: str) -> str | None:
    """A warning if the networks' error is not below that of a baseline; None if it is."""
    beaten_by = [name for name in NAMES if reached > baselines[name]]
    if not beaten_by:
        return None
    said = " and ".join(f"that of {NAMES[name]} ({baselines[name]:.4g})" for name in beaten_by)
    advice = "; `targets: standardised` in the experiment may help" if targets == "raw" else ""
    return f"warning: {cell}: the RMSE of the networks, {reached:.4g}, is above {said}{advice}"


def _of_fold(fold: Fold) -> dict[str, float]:
    x, y = (part.double() for part in (fold.x, fold.y))
    solution = torch.linalg.lstsq(_with_ones(x), y[:, None], driver="gelsd").solution
    predicted = {
        "mean": y.mean().expand(len(fold.held_y)),
        "least_squares": _with_ones(fold.held_x.double()) @ solution,
    }
    return {
        name: float((fold.target_mean + fold.target_std * value.flatten() - fold.held_y).square().mean().sqrt())
        for name, value in predicted.items()
    }


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
