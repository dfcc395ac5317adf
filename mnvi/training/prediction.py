"""What a network predicts for a set of data, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal

from mnvi.moments.checking import check_number

_COLUMNS = ("total", "aleatoric", "epistemic", "probs", "mean", "refer")


@dataclass(frozen=True)
class Prediction:
    r"""Predictions for N examples, as tensors on the CPU, which numpy's functions accept.

    For classes the uncertainties are entropies in nats, with :math:`total = aleatoric + epistemic`. For numbers they
    are standard deviations in the unit of the targets, with :math:`total^2 = aleatoric^2 + epistemic^2`.

    Attributes:
        total: uncertainty of the prediction.
        aleatoric: the part that no further training data would remove.
        epistemic: the part that more training data would reduce.
        probs: probabilities of the classes [N, C], or of "yes" for a Bernoulli likelihood; None for numbers.
        mean: expected value of the targets; None for classes.
        binary: whether ``probs`` are of a Bernoulli likelihood.
        refer: whether a person should look at the example; None unless :func:`mnvi.predict` was given ``refer``.

    Example:
        >>> import torch, mnvi
        >>> prediction = mnvi.predict(torch.nn.Linear(4, 3), torch.randn(5, 4), likelihood=mnvi.CategoricalLikelihood())
        >>> prediction.labels.shape, sorted(prediction.numpy())
        (torch.Size([5]), ['aleatoric', 'epistemic', 'labels', 'probs', 'total'])
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    probs: Tensor | None = None
    mean: Tensor | None = None
    refer: Tensor | None = None
    binary: bool = False

    def __len__(self) -> int:
        return len(self.total)

    def __str__(self) -> str:
        parts = [f"{name} {float(getattr(self, name).mean()):.3g}" for name in ("total", "aleatoric", "epistemic")]
        referred = "" if self.refer is None else f"; {int(self.refer.sum())} to refer"
        return f"{len(self)} predictions, mean uncertainty: {', '.join(parts)}{referred}"

    @property
    def labels(self) -> Tensor:
        """The most likely class of each example, or 0 and 1 for a Bernoulli likelihood."""
        if self.probs is None:
            raise TypeError("Prediction: numbers have no labels; read mean")
        return (self.probs > 0.5).long() if self.binary else self.probs.argmax(-1)

    @property
    def distribution(self) -> Distribution:
        """The prediction as a distribution of torch's: of classes, or a Gaussian with this mean and total."""
        if self.mean is not None:
            return Normal(self.mean, self.total)
        return Bernoulli(probs=self.probs) if self.binary else Categorical(probs=self.probs)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        r"""Lower and upper end of the interval that should hold a share ``level`` of the targets.

        .. math:: mean \pm \Phi^{-1}\big(\tfrac12 + \tfrac12\, level\big) \cdot total

        Args:
            level: share of the targets, in (0, 1).
        """
        check_number("Prediction.interval: level", level, above=0, below=1)
        if self.mean is None:
            raise TypeError("Prediction: classes have no interval; read probs")
        half = (
            math.sqrt(2)
            * float(torch.special.erfinv(torch.tensor(level, dtype=torch.float64, device="cpu")))
            * self.total
        )
        return self.mean - half, self.mean + half

    def numpy(self) -> dict[str, Any]:
        """All parts that exist, and the labels, as numpy arrays by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "binary"}
        if self.probs is not None:
            found["labels"] = self.labels
        return {name: value.numpy() for name, value in found.items() if value is not None}


def joined(parts: list[Prediction]) -> Prediction:
    """One prediction for the examples of several."""

    def column(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    return Prediction(**{name: column(name) for name in _COLUMNS}, binary=parts[0].binary)  # type: ignore[arg-type]


def chosen(prediction: Prediction, which: Tensor) -> Prediction:
    """The prediction for some of its targets, in one dimension.

    Args:
        prediction: the prediction.
        which: True for the targets to keep, in their shape.
    """
    columns = {name: getattr(prediction, name) for name in _COLUMNS}
    kept = {name: None if value is None else value[which] for name, value in columns.items()}
    return Prediction(**kept, binary=prediction.binary)  # type: ignore[arg-type]
