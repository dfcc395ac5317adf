"""What all likelihoods share: the base class, the parts of an uncertainty, the Gaussian that matches a prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal

from mnvi.moments.normal import safe_sqrt
from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian
from mnvi.values.samples import Samples

Output = Tensor | Gaussian | JointGaussian | Samples

_SAMPLES = 64


class Uncertainty(NamedTuple):
    """Entropy of a prediction and its two parts, in nats, one value per target.

    Attributes:
        total: entropy of the predictive distribution.
        aleatoric: expected entropy given the weights, the noise that no data removes.
        epistemic: the difference, the mutual information of prediction and weights.

    Example:
        >>> import torch, mnvi
        >>> out = mnvi.Gaussian(torch.zeros(1, 3), torch.full((1, 3), 1e-6))
        >>> like = mnvi.CategoricalLikelihood(generator=torch.Generator().manual_seed(0))
        >>> [round(float(part), 4) for part in like.uncertainty(out)]
        [1.0986, 1.0986, 0.0]
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class StandardDeviations(NamedTuple):
    r"""Standard deviation of a prediction and its two parts, in the unit of the targets, one value per target.

    The squares add up, by the law of total variance: :math:`V[y] = E[V[y|h]] + V[E[y|h]]`.

    Attributes:
        total: :math:`\sqrt{V[y]}`, of the predictive distribution.
        aleatoric: :math:`\sqrt{E[V[y|h]]}`, the noise that no data removes.
        epistemic: :math:`\sqrt{V[E[y|h]]}`, what is not known about the mean; zero for an output without variance.

    Example:
        >>> import torch, mnvi
        >>> out = mnvi.Gaussian(torch.tensor([[0.0, 16.0]]).log1p(), torch.tensor([[8.0, 0.0]]))
        >>> mnvi.GaussianLikelihood().standard_deviations(out)  # 5² = 17 + 8
        StandardDeviations(total=tensor([5.]), aleatoric=tensor([4.1231]), epistemic=tensor([2.8284]))
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class Likelihood(nn.Module, ABC):
    r"""Base class: distribution :math:`p(y|h)` of targets given a network's output :math:`h`, which may be random.

    A subclass computes :math:`E_q[\log p(y|h)]` and :math:`E_q[p(y|h)]` for outputs that are a tensor, a
    :class:`mnvi.Gaussian` or :class:`mnvi.Samples`; :class:`mnvi.ELBO` accepts any likelihood.

    Example:
        >>> import mnvi
        >>> all(isinstance(like(), mnvi.Likelihood) for like in (mnvi.GaussianLikelihood, mnvi.CategoricalLikelihood))
        True
    """

    @abstractmethod
    def expected_log_prob(self, out: Output, y: Tensor) -> Tensor:
        """:math:`E_q[\\log p(y|h)]`, one value per target.

        Args:
            out: the network's output.
            y: the targets.
        """

    @abstractmethod
    def predictive(self, out: Output) -> Distribution:
        """:math:`p(y|x) = E_q[p(y|h)]`.

        Args:
            out: the network's output.
        """

    def mean_log_prob(self, out: Output, y: Tensor) -> Tensor:
        """Mean of :meth:`expected_log_prob` over all targets, which :class:`mnvi.ELBO` maximises.

        A likelihood whose targets do not all count the same, such as one with class weights, overrides it.

        Args:
            out: the network's output.
            y: the targets.

        Example:
            >>> import torch, mnvi
            >>> mnvi.GaussianLikelihood().mean_log_prob(torch.zeros(3, 2), torch.zeros(3))
            tensor(-0.9189)
        """
        return self.expected_log_prob(out, y).mean()

    def counted(self, y: Tensor) -> Tensor:
        """Which targets count: all, unless a likelihood ignores some.

        Args:
            y: the targets.

        Example:
            >>> import torch, mnvi
            >>> mnvi.CategoricalLikelihood(ignore_index=255).counted(torch.tensor([0, 255, 2]))
            tensor([ True, False,  True])
        """
        return torch.ones_like(y, dtype=torch.bool)

    def uncertainty(self, out: Output) -> Uncertainty:
        """Entropy of the prediction and its parts; the aleatoric part averages over 64 samples of the output.

        Args:
            out: the network's output.
        """
        total = self.predictive(out).entropy()
        if isinstance(out, Tensor):
            return Uncertainty(total, total, torch.zeros_like(total))
        aleatoric = self.predictive(_sampled(out)).entropy().mean(0)
        return Uncertainty(total, aleatoric, total - aleatoric)

    def standard_deviations(self, out: Output) -> StandardDeviations:
        """Standard deviation of the prediction and its parts, from 64 samples of the output.

        The library's own likelihoods override it by closed forms.

        Args:
            out: the network's output.
        """
        known = self.predictive(out if isinstance(out, Tensor) else _sampled(out))
        if isinstance(known, Categorical):
            raise TypeError(f"{type(self).__name__}: classes have no standard deviation; use uncertainty(out)")
        if isinstance(out, Tensor):
            return StandardDeviations(known.stddev, known.stddev, torch.zeros_like(known.stddev))
        return add_up(known.variance.mean(0), known.mean.var(0, correction=0))


def add_up(aleatoric: Tensor, epistemic: Tensor) -> StandardDeviations:
    """The standard deviations from the two variances, whose gradients are finite where a variance is zero."""
    return StandardDeviations(*map(safe_sqrt, (aleatoric + epistemic, aleatoric, epistemic)))


def _sampled(out: Output) -> Tensor:
    assert not isinstance(out, Tensor)
    return out.values if isinstance(out, Samples) else out.sample(_SAMPLES)


def moment_matched(distribution: Distribution) -> Normal:
    r"""The Gaussian with a distribution's mean and variance; deep ensembles report its log-likelihood.

    .. math:: \mathcal N\Big(\bar\mu,\; \frac1S\sum_s(\sigma_s^2 + \mu_s^2) - \bar\mu^2\Big)

    Args:
        distribution: a prediction for real numbers, such as a mixture; a ``Normal`` is returned unchanged.

    Example:
        >>> import torch, mnvi
        >>> mixture = mnvi.GaussianLikelihood().predictive(mnvi.Samples(torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]])))
        >>> mnvi.moment_matched(mixture).variance
        tensor([2.0000])
    """
    if isinstance(distribution, Normal):
        return distribution
    if isinstance(distribution, Categorical):
        raise TypeError("moment_matched: classes have no mean and variance; got a Categorical")
    return Normal(distribution.mean, distribution.stddev)
