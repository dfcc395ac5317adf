"""Linear scaling: a batch k times as large, with a learning rate k times as high, reached by a warm-up.

With ``images_per_worker`` the global batch is that many images for each of ``resources.workers`` workers, and the
recipe's learning rate, which is for ``batch_size`` images, grows in proportion (Goyal et al., 2017). κ/N stays the
same: the rate multiplies the KL's gradient, too. The batch follows from the number of workers that the settings ask
for, so a training that loses nodes keeps its batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch.optim import Optimizer

from pipeline.console import say
from pipeline.params import Cell
from pipeline.params.settings import Experiment

FEWEST = 32  # images of a worker's batch norm


def scaled(cell: Cell) -> Experiment:
    """The recipe with the batch and the learning rate of this many workers."""
    recipe = cell.experiment
    if recipe.images_per_worker is None:
        return recipe
    batch = recipe.images_per_worker * cell.resources.workers
    return replace(recipe, batch_size=batch, learning_rate=recipe.learning_rate * batch / recipe.batch_size)


def warmth(cell: Cell, epoch: int, step: int, steps: int) -> float:
    """The factor of the learning rate: from that of the recipe's own batch up to 1, in equal steps over the warm-up."""
    recipe = cell.experiment
    if recipe.warmup is None or epoch >= recipe.warmup:
        return 1.0
    start = min(1.0, recipe.learning_rate / scaled(cell).learning_rate)
    return start + (1 - start) * (epoch * steps + step + 1) / (recipe.warmup * steps)


@contextmanager
def warmed(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Multiplies the learning rates while the block runs; schedulers see the rates without the factor."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = factor * rate
    yield
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def say_if_small(cell: Cell, workers: int) -> None:
    """Warns if each worker gets too few images of a batch for its batch norm to average over."""
    recipe = scaled(cell)
    each = recipe.batch_size // workers
    if workers > 1 and each < FEWEST and not recipe.sync_batch_norm:
        say(
            f"{cell.name}: {workers} workers share a batch of {recipe.batch_size}, {each} images each, and batch norm "
            f"sees no more than these; use fewer workers, or set experiments.{recipe.name}.images_per_worker (with "
            "warmup) or sync_batch_norm"
        )
