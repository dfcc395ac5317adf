"""Plans, builds, trains and restores a cell's networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import mnvi
from mnvi import replicas
from pipeline import propagation
from pipeline.params import Cell
from pipeline.registry import networks as known
from pipeline.registry.methods import METHODS, Method
from pipeline.regression.folds import Fold, seed

# Defaults of sampling methods; hyperparameters override them. The chunk of passes bounds memory.
PREDICTION = {"num_samples": 100, "chunk": 20}


@dataclass(frozen=True)
class Replica:
    """One network of a cell. An ensemble has several for each fold and run, other methods one."""

    fold: int
    run: int
    member: int = 0

    @property
    def seed(self) -> int:
        """Seed of initialisation, shuffling and noise, the same for every method and data set."""
        return seed("fold", self.fold, "run", self.run, "member", self.member)

    def __str__(self) -> str:
        return f"fold {self.fold}, run {self.run}" + (f", member {self.member}" if self.member else "")


def plan(cell: Cell, folds: int, runs: int) -> list[Replica]:
    """All networks of a cell, run after run."""
    return [Replica(f, r, m) for r in range(runs) for f in range(folds) for m in range(members(cell))]


def members(cell: Cell) -> int:
    return int(cell.hyperparameters.get("num_members", 5)) if cell.known_method.members else 1


def recipe(cell: Cell) -> replicas.Recipe:
    it = cell.experiment
    return replicas.Recipe(
        epochs=it.epochs,
        batch_size=it.batch_size,
        learning_rate=it.learning_rate,
        optimizer=it.optimizer,
        momentum=it.momentum,
        nesterov=it.nesterov,
        weight_decay=it.weight_decay,
        milestones=it.milestones,
        gamma=it.gamma,
        clip=it.clip,
    )


def builder(cell: Cell, networks: Sequence[Replica], folds: Sequence[Fold]) -> Callable[[int], mnvi.Objective]:
    """A function that makes the k-th network with its loss."""
    has_kl = cell.known_method.has_kl

    def build(k: int) -> mnvi.Objective:
        fold = folds[networks[k].fold]
        method, arguments = _method(cell, networks[k])
        dropout = float(cell.hyperparameters.get("dropout", 0.0))
        net = method.network(lambda: known.build(cell.experiment, dropout, in_features=fold.x.shape[1]), **arguments)
        kappa = mnvi.StepSchedule(cell.experiment.kappa) if has_kl else 0.0
        return mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=len(fold.y), kappa=kappa))

    return build


def train(
    cell: Cell,
    networks: Sequence[Replica],
    folds: Sequence[Fold],
    progress: Callable[[list[int], int, Tensor], None] | None = None,
    compile: bool = False,
    drop_last: bool = False,
) -> replicas.Replicas:
    """Trains these networks together.

    Args:
        drop_last: whether a smaller last batch of an epoch is left out, which no study does; tools.variations tries it.
    """
    data = [(folds[network.fold].x, folds[network.fold].y) for network in networks]
    seeds = [network.seed for network in networks]
    with propagation.options(cell.known_method):
        return replicas.train(
            builder(cell, networks, folds),
            data,
            seeds,
            replace(recipe(cell), drop_last=drop_last),
            progress=progress,
            compile=compile,
        )


def restore(cell: Cell, networks: Sequence[Replica], folds: Sequence[Fold], saved: dict[str, Any]) -> replicas.Replicas:
    """Trained networks from their saved state and losses."""
    seeds = [network.seed for network in networks]
    return replicas.load(builder(cell, networks, folds), seeds, saved["state"], saved["losses"])


def num_parameters(cell: Cell, folds: Sequence[Fold]) -> int:
    """Number of parameters that one prediction uses; an ensemble counts all its members."""
    with torch.random.fork_rng([]):
        objective = builder(cell, [Replica(0, 0)], folds)(0)
    return members(cell) * sum(parameter.numel() for parameter in objective.parameters())


def _method(cell: Cell, network: Replica) -> tuple[Method, dict[str, Any]]:
    method = cell.known_method
    if method.members:  # members are separate networks until they predict together
        return METHODS["deterministic"], {}
    if method.samples:  # each network has its own fixed noise, so its predictions repeat
        return method, {**PREDICTION, "seed": network.seed, **cell.method_arguments}
    return method, cell.method_arguments
