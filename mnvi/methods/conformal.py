"""Sets and intervals with a stated coverage, on top of any method."""

from __future__ import annotations

import math

from torch import Tensor
from torch.distributions import Categorical, Distribution

from mnvi.moments.checking import check_number


class Conformal:
    r"""Split-conformal prediction: sets of classes, or intervals, that hold a chosen share of new targets.

    From n calibration examples that the network was not trained on, q is the :math:`\lceil (n+1)\,c\rceil`-th smallest
    score. New examples of the same kind are then covered with a probability of at least c, whatever the network and
    however wrong its probabilities; only the size of sets and intervals depends on these. The statement is about all
    examples together, not about each kind of example.

    For classes the score is :math:`1 - p_y`, and a set holds every class with :math:`1 - p_k \le q`, and always the
    most likely one. For numbers it is :math:`|y - \mu|/\sigma`, and the interval is :math:`\mu \pm q\sigma`.

    Args:
        predictive: predictions for the calibration data, from a likelihood's ``predictive``.
        targets: their classes or values.
        coverage: c, in (0, 1).

    Example:
        >>> import torch, mnvi
        >>> p = torch.distributions.Normal(torch.zeros(99), torch.ones(99))
        >>> conformal = mnvi.methods.Conformal(p, torch.linspace(-3, 3, 99), coverage=0.9)
        >>> lower, upper = conformal.intervals(torch.distributions.Normal(torch.zeros(1), torch.ones(1)))
        >>> upper
        tensor([2.7551])
        >>> probs = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.06, 0.04]]).repeat(50, 1)
        >>> p = torch.distributions.Categorical(probs=probs)
        >>> conformal = mnvi.methods.Conformal(p, torch.tensor([0, 0, 1, 0]).repeat(25), coverage=0.9)
        >>> conformal.sets(p)[:2]
        tensor([[ True,  True, False],
                [ True, False, False]])
    """

    def __init__(self, predictive: Distribution, targets: Tensor, coverage: float = 0.9) -> None:
        check_number("Conformal: coverage", coverage, above=0, below=1)
        self.coverage = coverage
        scores = _scores(predictive, targets).flatten().double()
        rank = math.ceil((len(scores) + 1) * coverage * (1 - 1e-12))
        if rank > len(scores):
            needed = math.ceil(coverage / (1 - coverage))
            raise ValueError(
                f"Conformal: coverage={coverage} needs at least {needed} calibration examples, got {len(scores)}"
            )
        self.quantile = float(scores.sort().values[rank - 1])

    def sets(self, predictive: Distribution) -> Tensor:
        """Which classes each set holds, [..., classes].

        Args:
            predictive: predictions for new data.
        """
        if not isinstance(predictive, Categorical):
            raise TypeError(f"Conformal: sets are for classes, got a {type(predictive).__name__}; use intervals")
        probs = predictive.probs
        chosen = 1 - probs.double() <= self.quantile
        return chosen.scatter(-1, probs.argmax(-1, keepdim=True), True)

    def intervals(self, predictive: Distribution) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the intervals.

        Args:
            predictive: predictions for new data.
        """
        if isinstance(predictive, Categorical):
            raise TypeError("Conformal: intervals are for numbers, got classes; use sets")
        half = self.quantile * predictive.stddev
        return predictive.mean - half, predictive.mean + half


def _scores(predictive: Distribution, targets: Tensor) -> Tensor:
    """How badly each target fits its prediction."""
    shape = predictive.batch_shape
    if targets.shape != shape:
        raise ValueError(
            f"Conformal: targets have shape {tuple(targets.shape)}, the predictions {tuple(shape)}; expected one "
            "target for each"
        )
    if isinstance(predictive, Categorical):
        return 1 - predictive.probs.double().gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (targets.double() - predictive.mean.double()).abs() / predictive.stddev.double()
