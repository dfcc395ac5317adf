"""The settings for training many networks: :class:`Recipe`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnvi.moments.checking import check_number

OPTIMIZERS = ("sgd", "adam", "amsgrad")


@dataclass(frozen=True)
class Recipe:
    """How to train every replica; the optimisers are torch's SGD and Adam, the schedule its MultiStepLR.

    Args:
        epochs: passes over the data.
        batch_size: the last batch of an epoch may be smaller.
        drop_last: leave such a smaller batch out; the order changes every epoch, so every example has its turn.
        learning_rate: initial learning rate.
        optimizer: ``"sgd"``, ``"adam"`` or ``"amsgrad"``.
        momentum, nesterov: settings of SGD.
        weight_decay: as in torch's optimisers, added to the gradient.
        milestones: epochs at which the learning rate is multiplied by ``gamma``.
        gamma: factor applied to the learning rate at each milestone.
        clip: largest absolute entry of a replica's gradient; a gradient that exceeds it is scaled down as a whole.

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
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            check_number(f"Recipe: {name}", getattr(self, name), least=1, whole=True)
        for name in ("learning_rate", "gamma"):
            check_number(f"Recipe: {name}", getattr(self, name), above=0)
        check_number("Recipe: momentum", self.momentum, least=0, below=1)
        check_number("Recipe: weight_decay", self.weight_decay, least=0)
        if self.clip is not None:
            check_number("Recipe: clip", self.clip, above=0)
        for name in ("nesterov", "drop_last"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"Recipe: {name}={getattr(self, name)!r} must be True or False")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"Recipe: optimizer={self.optimizer!r} must be one of {', '.join(OPTIMIZERS)}")
        milestones: object = self.milestones
        if not isinstance(milestones, Sequence) or isinstance(milestones, str):
            raise ValueError(f"Recipe: milestones={milestones!r} must be a list of epochs, e.g. (100, 150)")
        for milestone in self.milestones:
            check_number("Recipe: a milestone", milestone, least=0, whole=True)
        for name in ("momentum", "nesterov"):
            value = getattr(self, name)
            if value and self.optimizer != "sgd":
                raise ValueError(f"Recipe: {name}={value!r} is for sgd, not for {self.optimizer}; leave it out")
        if self.nesterov and not self.momentum:
            raise ValueError("Recipe: nesterov=True needs a momentum above 0")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        return self.learning_rate * self.gamma ** sum(milestone <= epoch for milestone in self.milestones)
