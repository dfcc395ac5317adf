"""Which examples a person should look at."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mnvi.moments.checking import check_number
from mnvi.training.prediction import Prediction


@dataclass(frozen=True)
class Referral:
    r"""Refers an example to a person if its total uncertainty exceeds a threshold.

    The threshold comes from validation data, by :meth:`at_rate` or :meth:`at_error`, and holds for single examples. On
    new data of the same kind the rate and the error come out as there, up to chance.

    Args:
        threshold: largest total uncertainty that is not referred.
        rate: share of the validation data above the threshold.
        error: share of wrong classes among the rest of the validation data; for numbers, their RMSE.

    Example:
        >>> import torch, mnvi
        >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5]])
        >>> entropy = torch.special.entr(probs).sum(1)
        >>> prediction = mnvi.Prediction(entropy, entropy, torch.zeros(4), probs=probs)
        >>> rule = mnvi.Referral.at_error(prediction, torch.tensor([0, 1, 1, 0]), error=0.0)
        >>> rule(prediction), rule.rate
        (tensor([False,  True, False,  True]), 0.5)
    """

    threshold: float
    rate: float
    error: float

    @classmethod
    def at_rate(cls, prediction: Prediction, targets: Tensor, rate: float) -> Referral:
        """Refer a chosen share of the data, rounded down.

        Args:
            prediction: for validation data.
            targets: their classes or values.
            rate: share to refer, from 0 to below 1.
        """
        check_number("Referral.at_rate: rate", rate, least=0, below=1)
        order, errors = _remaining(prediction, targets)
        return cls._keeping(order, errors, len(order) - math.floor(rate * len(order) * (1 + 1e-12)))

    @classmethod
    def at_error(cls, prediction: Prediction, targets: Tensor, error: float) -> Referral:
        """Refer as few as possible so that the error of the rest is at most a chosen one.

        Args:
            prediction: for validation data.
            targets: their classes or values.
            error: share of wrong classes; for numbers, the RMSE in the unit of the targets.
        """
        check_number("Referral.at_error: error", error, least=0)
        order, errors = _remaining(prediction, targets)
        # Equal uncertainties are referred together, so a cut is possible only where the next one is larger.
        possible = (errors <= error) & torch.cat([order[1:] > order[:-1], torch.tensor([True], device="cpu")])
        if not bool(possible.any()):
            raise ValueError(
                f"Referral.at_error: error={error} cannot be reached, however many examples are referred; the lowest "
                f"possible is "
                f"{float(errors.min()):.4g}"
            )
        return cls._keeping(order, errors, int(possible.nonzero().max()) + 1)

    def __call__(self, prediction: Prediction) -> Tensor:
        return prediction.total > self.threshold

    @classmethod
    def _keeping(cls, order: Tensor, errors: Tensor, kept: int) -> Referral:
        threshold = order[kept - 1]
        kept = int((order <= threshold).sum())
        return cls(float(threshold), 1 - kept / len(order), float(errors[kept - 1]))


def most_uncertain(prediction: Prediction, rate: float) -> Tensor:
    """The given share of the predictions, rounded down, whose total uncertainty is largest."""
    check_number("predict: refer", rate, least=0, most=1, because="a share of the data, or a mnvi.Referral")
    total = prediction.total
    count = math.floor(rate * total.numel() * (1 + 1e-12))
    chosen = torch.zeros(total.numel(), dtype=torch.bool, device=total.device)
    chosen[total.flatten().argsort(descending=True, stable=True)[:count]] = True
    return chosen.view(total.shape)


def _remaining(prediction: Prediction, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Total uncertainties in ascending order, and the error of the first, the first two, ..., all predictions."""
    targets = torch.as_tensor(targets).cpu()
    if targets.shape != prediction.total.shape:
        raise ValueError(
            f"Referral: targets have shape {tuple(targets.shape)}, the predictions {tuple(prediction.total.shape)}; "
            "expected one target for each"
        )
    total, order = prediction.total.flatten().sort(stable=True)
    counts = torch.arange(1, len(total) + 1, dtype=torch.float64, device=total.device)
    if prediction.mean is None:
        wrong = (prediction.labels != targets).flatten()[order].double()
        return total, wrong.cumsum(0) / counts
    squares = (prediction.mean.double() - targets.double()).square().flatten()[order]
    return total, (squares.cumsum(0) / counts).sqrt()
