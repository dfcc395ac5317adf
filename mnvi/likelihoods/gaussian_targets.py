"""Regression with Gaussian noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from mnvi.likelihoods._checks import check_targets
from mnvi.likelihoods._heads import Pair, one_head, two_heads
from mnvi.likelihoods.base import Likelihood, Output, StandardDeviations, Uncertainty, add_up
from mnvi.moments.bounds import bounded
from mnvi.moments.checking import check_number
from mnvi.values.samples import Samples

_LOG_2PI = math.log(2 * math.pi)
_ONLY_THE_MEAN = ". For a network that returns only the mean use homoscedastic=True"


class GaussianLikelihood(Likelihood):
    r"""Regression with Gaussian noise: :math:`y \sim \mathcal N(\mu, e^c)`.

    The network's last dimension is 2: the mean head :math:`\mu`, then the log-variance head c. With
    ``homoscedastic=True`` c is one learnt number ``log_noise`` and the network returns only :math:`\mu`, in the shape
    of the targets.

    .. math::
        E[\log p(y)] = -\tfrac12\big(\log 2\pi + c + e^{-c + v_c/2}(v_\mu + (\mu - y)^2)\big), \qquad
        p(y) = \mathcal N(\mu,\; v_\mu + e^{c + v_c/2})

    :class:`mnvi.Samples` are averaged: the predictive distribution is then a mixture (see :func:`moment_matched`). For
    a :class:`mnvi.JointGaussian` the covariance of the two heads counts: :math:`\mu - C_{\mu c}` replaces :math:`\mu`
    in the expected log-likelihood.

    Inputs that nobody has scaled make c hundreds large, and :math:`e^c` would overflow. So :math:`c`,
    :math:`-c + v_c/2` and :math:`c + v_c/2` go through :func:`mnvi.moments.bounds.bounded`: from −22 to 22 (float32;
    standard deviations of the noise from 1.6e-5 to 6e4) nothing changes, to the last bit; beyond, the noise variance
    grows like :math:`c` instead of :math:`e^c`. Loss and gradients stay finite, and training can come back.

    Several targets per example: ``[..., outputs, 2]`` gives targets ``[..., outputs]``. A linear layer gives
    ``[..., 2·outputs]``; ``outputs=`` reads its features as pairs (mean, log-variance), as ``unflatten`` would.

    Args:
        homoscedastic: one noise variance for all inputs.
        init_log_noise: initial value of ``log_noise``.
        outputs: number of targets in the last dimension; with ``homoscedastic=True`` each has its own ``log_noise``.

    Example:
        >>> import torch, mnvi
        >>> like = mnvi.GaussianLikelihood()
        >>> out = mnvi.Gaussian(torch.zeros(5, 2), torch.ones(5, 2))
        >>> like.expected_log_prob(out, torch.zeros(5)).shape
        torch.Size([5])
        >>> like.predictive(out).stddev[0]
        tensor(1.6275)
        >>> three = mnvi.GaussianLikelihood(outputs=3)
        >>> three.predictive(mnvi.Gaussian(torch.zeros(5, 6), torch.ones(5, 6))).stddev.shape
        torch.Size([5, 3])
    """

    outputs: int | None

    def __init__(self, homoscedastic: bool = False, init_log_noise: float = 0.0, outputs: int | None = None) -> None:
        super().__init__()
        self.homoscedastic = homoscedastic
        check_number("GaussianLikelihood: init_log_noise", init_log_noise)
        if outputs is not None:
            check_number("GaussianLikelihood: outputs", outputs, least=1, whole=True)
        self.outputs = outputs
        if homoscedastic:
            noise = torch.tensor(float(init_log_noise))
            self.log_noise = nn.Parameter(noise if outputs is None else noise.repeat(outputs))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"outputs": None, **state})  # files of version 0.1 have no outputs

    def expected_log_prob(self, out: Output, y: Tensor) -> Tensor:
        r""":math:`-\tfrac12\big(\log 2\pi + c + e^{-c + v_c/2}(v_\mu + (\mu - y)^2)\big)`, one value per target.

        Args:
            out: the network's output, [..., 2], or [...] if homoscedastic; :class:`mnvi.Samples` are averaged over.
            y: real targets [...], on the output's device.

        Example:
            >>> import torch, mnvi
            >>> mnvi.GaussianLikelihood().expected_log_prob(torch.zeros(1, 2), torch.zeros(1))  # −½ log 2π
            tensor([-0.9189])
        """
        mean, mean_var, log_noise, log_noise_var, covariance = self._heads(out)
        sampled = isinstance(out, Samples)
        check_targets("GaussianLikelihood", y, mean, sampled)
        error = mean_var + (mean - covariance - y).square()
        precision = torch.exp(bounded(0.5 * log_noise_var - log_noise))
        value = -0.5 * (_LOG_2PI + bounded(log_noise) + precision * error)
        return value.mean(0) if sampled else value

    def predictive(self, out: Output) -> Distribution:
        r""":math:`\mathcal N(\mu,\; v_\mu + e^{c + v_c/2})`; for :class:`mnvi.Samples`, the mixture over samples.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> out = mnvi.Gaussian(torch.zeros(1, 2), torch.tensor([[3.0, 0.0]]))
            >>> mnvi.GaussianLikelihood().predictive(out).stddev
            tensor([2.])
        """
        heads = self._heads(out)
        std = (heads.first_var + _noise(heads)).sqrt()
        mean = heads.first
        if not isinstance(out, Samples):
            return Normal(mean, std.expand_as(mean))
        members = Normal(mean.movedim(0, -1), std.expand_as(mean).movedim(0, -1))
        return MixtureSameFamily(Categorical(torch.ones_like(members.mean)), members)

    def uncertainty(self, out: Output) -> Uncertainty:
        r"""Entropies :math:`\tfrac12\log 2\pi e V[y]` and :math:`\tfrac12(\log 2\pi e + c)`; for a mixture, that of the
        Gaussian with its mean and variance.

        Args:
            out: as in :meth:`expected_log_prob`.
        """
        log_noise = bounded(self._heads(out).second)
        total = 0.5 * (_LOG_2PI + 1 + self.predictive(out).variance.log())
        aleatoric = 0.5 * (_LOG_2PI + 1 + log_noise)
        if isinstance(out, Samples) and not self.homoscedastic:
            aleatoric = aleatoric.mean(0)
        aleatoric = aleatoric.expand_as(total)
        return Uncertainty(total, aleatoric, total - aleatoric)

    def standard_deviations(self, out: Output) -> StandardDeviations:
        r"""Of each target: aleatoric :math:`\sqrt{E[e^c]} = e^{c/2 + v_c/4}`, epistemic :math:`\sqrt{v_\mu}`; their
        squares add up to the predictive variance.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> out = mnvi.Gaussian(torch.zeros(1, 2), torch.tensor([[3.0, 0.0]]))
            >>> mnvi.GaussianLikelihood().standard_deviations(out)
            StandardDeviations(total=tensor([2.]), aleatoric=tensor([1.]), epistemic=tensor([1.7321]))
        """
        heads = self._heads(out)
        noise = _noise(heads).expand_as(heads.first)
        if isinstance(out, Samples):
            return add_up(noise.mean(0), heads.first.var(0, correction=0))
        return add_up(noise, heads.first_var + torch.zeros_like(heads.first))

    def _heads(self, out: Output) -> Pair:
        if not self.homoscedastic:
            return two_heads("GaussianLikelihood", out, self.outputs, "log-variance", _ONLY_THE_MEAN)
        mean, var = one_head("GaussianLikelihood", out)
        if self.outputs is not None and (mean.dim() == 0 or mean.shape[-1] != self.outputs):
            raise ValueError(
                f"GaussianLikelihood: the output's last dimension must be outputs = {self.outputs}, the means; got "
                f"shape {tuple(mean.shape)}"
            )
        return Pair(mean, 0.0 if var is None else var, self.log_noise, 0.0, 0.0)


def _noise(heads: Pair) -> Tensor:
    """E[e^c]."""
    return torch.exp(bounded(heads.second + 0.5 * heads.second_var))
