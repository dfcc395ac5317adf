"""The tempered evidence lower bound, its two terms apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from mnvi.checks import is_number
from mnvi.likelihoods import Likelihood, Output


class Terms(NamedTuple):
    """The loss and its parts.

    Attributes:
        loss: ``nll + kappa / num_data * kl``, what is minimised.
        nll: mean expected negative log-likelihood per example.
        kl: the KL divergence as given, unscaled.

    Example:
        >>> import torch, mnvi
        >>> mnvi.Terms(torch.tensor(1.5), torch.tensor(1.0), torch.tensor(50.0)).nll
        tensor(1.)
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor


@dataclass(frozen=True)
class StepSchedule:
    """A number that changes at given epochs: ``values[e]`` holds from epoch ``e`` on.

    Args:
        values: from first epoch to value; must have an entry for epoch 0.

    Example:
        >>> import mnvi
        >>> schedule = mnvi.StepSchedule({0: 0.01, 100: 0.1, 150: 1.0})  # the paper's for the UCI sets
        >>> [schedule(epoch) for epoch in (0, 99, 100, 150, 199)]
        [0.01, 0.01, 0.1, 1.0, 1.0]
    """

    values: Mapping[int, float]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise TypeError(f"StepSchedule: values={self.values!r} must be a mapping such as {{0: 0.01, 100: 0.1}}")
        whole = all(isinstance(epoch, int) and not isinstance(epoch, bool) for epoch in self.values)
        if not whole or 0 not in self.values or min(self.values) < 0:
            raise ValueError(
                f"StepSchedule: values={dict(self.values)} must map epochs, whole numbers >= 0, to numbers, 0 included"
            )
        for epoch, value in self.values.items():
            _check_kappa(value, f"StepSchedule: the value from epoch {epoch} on")

    def __call__(self, epoch: int) -> float:
        if epoch < 0:
            raise ValueError(f"StepSchedule: epoch={epoch} must be at least 0")
        return self.values[max(start for start in self.values if start <= epoch)]


class ELBO:
    r"""Negative tempered evidence lower bound per example.

    .. math:: L = -\frac1B\sum_{b=1}^{B} E_q[\log p(y_b|x_b,w)] + \frac{\kappa}{N}\,KL[q(w)\,\|\,p(w)]

    Args:
        likelihood: gives the expected log-likelihood of a network's output.
        num_data: N, number of training examples.
        kappa: :math:`\kappa \ge 0`, a number or a function of the epoch such as :class:`StepSchedule`.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(torch.nn.Linear(4, 3), mnvi.MultiplicativeNoise(prior_variance=1e-2))
        >>> elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=100, kappa=0.1)
        >>> terms = elbo(net(torch.ones(5, 4)), torch.zeros(5, dtype=torch.long), mnvi.kl_divergence(net))
        >>> torch.isclose(terms.loss, terms.nll + 0.1 / 100 * terms.kl)
        tensor(True)
    """

    def __init__(self, likelihood: Likelihood, num_data: int, kappa: float | Callable[[int], float] = 1.0) -> None:
        if not isinstance(likelihood, Likelihood):
            raise TypeError(f"ELBO: likelihood must be e.g. mnvi.CategoricalLikelihood(), got {likelihood!r}")
        if not is_number(num_data) or not 1 <= num_data < math.inf:
            raise ValueError(f"ELBO: num_data={num_data!r} must be at least 1, the number of training examples")
        if not callable(kappa):
            _check_kappa(kappa, "ELBO: kappa")
        self.likelihood = likelihood
        self.num_data = num_data
        self.kappa = kappa

    def __call__(self, out: Output, y: Tensor, kl: Tensor | None = None, epoch: int = 0) -> Terms:
        """The terms for one batch.

        Args:
            out: what the network returned.
            y: targets or labels.
            kl: ``mnvi.kl_divergence(net)``; None for a network without posterior.
            epoch: where a schedule for kappa stands.
        """
        nll = -self.likelihood.expected_log_prob(out, y).mean()
        if kl is None:
            kl = nll.new_zeros(())
        kappa = self.kappa
        if callable(kappa):
            kappa = kappa(epoch)
            _check_kappa(kappa, f"ELBO: kappa at epoch {epoch}")
        return Terms(nll + kappa / self.num_data * kl, nll, kl)


def _check_kappa(value: float, what: str) -> None:
    if not is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"{what}={value!r} must be a finite number >= 0")
