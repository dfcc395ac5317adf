"""Scores trained networks on the held-out rows: one set of scores per fold and run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

import mnvi
from mnvi.metrics import log_likelihood as mean_log_likelihood
from mnvi.metrics import rmse as rmse_of_means
from mnvi.replicas import Replicas
from pipeline import propagation
from pipeline.params import Cell
from pipeline.regression.cell_networks import Replica, members
from pipeline.regression.folds import Fold


@dataclass(frozen=True)
class Judged:
    """The scores of one fold and run; None if a loss or a prediction was not finite."""

    fold: int
    run: int
    scores: dict[str, float] | None
    epoch: int | None = None  # of the first loss that was not finite; None if the losses were finite


def judge(
    cell: Cell,
    networks: Sequence[Replica],
    folds: Sequence[Fold],
    trained: Replicas,
    measure: Callable[[Distribution, Tensor], dict[str, float]],
) -> Iterator[Judged]:
    """Scores every fold and run. The members of an ensemble, adjacent in the plan, predict together.

    Args:
        measure: computes scores from a prediction and the targets.
    """
    size, failures = members(cell), trained.failures
    for start in range(0, len(networks), size):
        group = range(start, start + size)
        fold, run = networks[start].fold, networks[start].run
        failed = [failures[k] for k in group if k in failures]
        if failed:
            yield Judged(fold, run, None, min(failed))
            continue
        prediction = _predict(cell, [trained.module(k) for k in group], folds[fold])
        scores = measure(prediction, folds[fold].held_y) if prediction else {}
        yield Judged(fold, run, scores if scores and all(map(math.isfinite, scores.values())) else None)


def log_likelihood(prediction: Distribution, y: Tensor) -> dict[str, float]:
    return {"log_likelihood": float(mean_log_likelihood(prediction, y))}


def rmse(prediction: Distribution, y: Tensor) -> Tensor:
    return rmse_of_means(prediction.mean, y)


def in_units(out: Any, fold: Fold) -> Any:
    """The two heads, mean and log-variance, of a network's output in the target's unit."""
    if (fold.target_mean, fold.target_std) == (0.0, 1.0):
        return out
    scale = torch.tensor([fold.target_std, 1.0])
    shift = torch.tensor([fold.target_mean, 2 * math.log(fold.target_std)])
    if isinstance(out, mnvi.Samples):
        return mnvi.Samples(out.values * scale + shift)
    return out * scale + shift


@torch.no_grad()
def _predict(cell: Cell, objectives: Sequence[mnvi.Objective], fold: Fold) -> Distribution | None:
    with propagation.options(cell.known_method):
        outputs = [objective.net(fold.held_x) for objective in objectives]
    out = mnvi.Samples(torch.stack(outputs)) if cell.known_method.members else outputs[0]
    out = in_units(out, fold)
    parts = out.values if isinstance(out, mnvi.Samples) else out if isinstance(out, Tensor) else out.mean + out.var
    if not parts.isfinite().all():
        return None
    return objectives[0].likelihood.predictive(out)
