"""How many networks are trained: :class:`Recipe`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mnvi.checks import is_number
from mnvi.optimizers import OPTIMIZERS


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_above(value: Any, bound: float) -> bool:
    return is_number(value) and bound < value < math.inf


def _are_epochs(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(_is_whole(value, 0) for value in values)


_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "epochs": (lambda value: _is_whole(value, 1), "a whole number, at least 1"),
    "batch_size": (lambda value: _is_whole(value, 1), "a whole number, at least 1"),
    "learning_rate": (lambda value: _is_above(value, 0), "a finite number above 0"),
    "optimizer": (lambda value: isinstance(value, str) and value in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
    "momentum": (lambda value: is_number(value) and 0 <= value < 1, "a number from 0 to below 1"),
    "nesterov": (lambda value: isinstance(value, bool), "True or False"),
    "weight_decay": (lambda value: is_number(value) and 0 <= value < math.inf, "a finite number, at least 0"),
    "milestones": (_are_epochs, "a list of epochs, whole numbers of at least 0"),
    "gamma": (lambda value: _is_above(value, 0), "a finite number above 0"),
    "clip": (lambda value: value is None or _is_above(value, 0), "a finite number above 0, or None"),
}


@dataclass(frozen=True)
class Recipe:
    """How every replica is trained; the optimisers are torch's SGD and Adam, the schedule its MultiStepLR.

    Args:
        epochs: passes over the data.
        batch_size: the last batch of an epoch may be smaller.
        learning_rate: at the start.
        optimizer: ``"sgd"``, ``"adam"`` or ``"amsgrad"``.
        momentum, nesterov: of SGD.
        weight_decay: as in torch's optimisers, added to the gradient.
        milestones: epochs from which on the learning rate is multiplied by ``gamma``, once each.
        gamma: see there.
        clip: largest absolute entry of a replica's gradient, which is scaled down as a whole where it is larger.

    Example:
        >>> Recipe(epochs=200, batch_size=64, learning_rate=0.05, momentum=0.9, milestones=(100, 150), clip=1.0).gamma
        0.1
    """

    epochs: int
    batch_size: int
    learning_rate: float
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    milestones: Sequence[int] = ()
    gamma: float = 0.1
    clip: float | None = None

    def __post_init__(self) -> None:
        for name, (allowed, expected) in _ALLOWED.items():
            value = getattr(self, name)
            if not allowed(value):
                raise ValueError(f"Recipe: {name}={value!r} must be {expected}")
        for name in ("momentum", "nesterov"):
            value = getattr(self, name)
            if value and self.optimizer != "sgd":
                raise ValueError(f"Recipe: {name}={value!r} is for sgd, not for {self.optimizer}; leave it out")
        if self.nesterov and not self.momentum:
            raise ValueError("Recipe: nesterov=True needs a momentum above 0")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        return self.learning_rate * self.gamma ** sum(milestone <= epoch for milestone in self.milestones)
