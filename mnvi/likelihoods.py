"""Expected log-likelihood and predictive distribution of a network's output, Gaussian and categorical."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from mnvi._validation import check_number
from mnvi.moments._torch import values_can_be_read
from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian
from mnvi.values.samples import Samples

Output = Tensor | Gaussian | JointGaussian | Samples

_LOG_2PI = math.log(2 * math.pi)
_SAMPLES = 64


class Uncertainty(NamedTuple):
    """Entropy of a prediction and its two parts, in nats, one value per example.

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
        """:math:`E_q[\\log p(y|h)]`, one value per example.

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

    def uncertainty(self, out: Output) -> Uncertainty:
        """Entropy of the prediction and its parts; the aleatoric part averages over 64 samples of the output.

        Args:
            out: the network's output.
        """
        total = self.predictive(out).entropy()
        if isinstance(out, Tensor):
            return Uncertainty(total, total, torch.zeros_like(total))
        values = out.values if isinstance(out, Samples) else out.sample(_SAMPLES)
        aleatoric = self.predictive(values).entropy().mean(0)
        return Uncertainty(total, aleatoric, total - aleatoric)


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

    Args:
        homoscedastic: one noise variance for all inputs.
        init_log_noise: initial value of ``log_noise``.

    Example:
        >>> import torch, mnvi
        >>> like = mnvi.GaussianLikelihood()
        >>> out = mnvi.Gaussian(torch.zeros(5, 2), torch.ones(5, 2))
        >>> like.expected_log_prob(out, torch.zeros(5)).shape
        torch.Size([5])
        >>> like.predictive(out).stddev[0]
        tensor(1.6275)
    """

    def __init__(self, homoscedastic: bool = False, init_log_noise: float = 0.0) -> None:
        super().__init__()
        self.homoscedastic = homoscedastic
        check_number("GaussianLikelihood: init_log_noise", init_log_noise)
        if homoscedastic:
            self.log_noise = nn.Parameter(torch.tensor(float(init_log_noise)))

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
        mean, mean_var, log_noise, log_noise_var = self._heads(out)
        sampled = isinstance(out, Samples)
        expected = mean.shape[1:] if sampled else mean.shape
        _check_tensor("GaussianLikelihood: targets", y, mean.device)
        if y.is_complex() or y.dtype == torch.bool:
            raise TypeError(f"GaussianLikelihood: targets must be real numbers, got {y.dtype}")
        if y.shape != expected:
            raise ValueError(
                f"GaussianLikelihood: targets have shape {tuple(y.shape)}, expected {tuple(expected)}; "
                "remove a last dimension of 1 with y.squeeze(-1) or out.squeeze(-1)"
            )
        error = mean_var + (mean - self._shift(out) - y).square()
        value = -0.5 * (_LOG_2PI + log_noise + torch.exp(0.5 * log_noise_var - log_noise) * error)
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
        mean, mean_var, log_noise, log_noise_var = self._heads(out)
        std = (mean_var + torch.exp(log_noise + 0.5 * log_noise_var)).sqrt()
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
        _, _, log_noise, _ = self._heads(out)
        total = 0.5 * (_LOG_2PI + 1 + self.predictive(out).variance.log())
        aleatoric = 0.5 * (_LOG_2PI + 1 + log_noise)
        if isinstance(out, Samples) and not self.homoscedastic:
            aleatoric = aleatoric.mean(0)
        aleatoric = aleatoric.expand_as(total)
        return Uncertainty(total, aleatoric, total - aleatoric)

    def _shift(self, out: Output) -> Tensor | float:
        """Shift of μ's mean caused by the factor exp(−c): their covariance."""
        if isinstance(out, JointGaussian) and not self.homoscedastic:
            return out.cov[..., 0, 1]
        return 0.0

    def _heads(self, out: Output) -> tuple[Tensor, Tensor | float, Tensor, Tensor | float]:
        _check_output("GaussianLikelihood", out)
        var: Tensor | None = None
        if isinstance(out, Gaussian | JointGaussian):
            values, var = out.mean, out.var
        else:
            values = out.values if isinstance(out, Samples) else out
        if self.homoscedastic:
            return values, 0.0 if var is None else var, self.log_noise, 0.0
        if values.dim() == 0 or values.shape[-1] != 2:
            raise ValueError(
                "GaussianLikelihood: the output's last dimension must be 2, mean and log-variance; got shape "
                f"{tuple(values.shape)}. For a network that returns only the mean use homoscedastic=True"
            )
        if var is None:
            return values[..., 0], 0.0, values[..., 1], 0.0
        return values[..., 0], var[..., 0], values[..., 1], var[..., 1]


class CategoricalLikelihood(Likelihood):
    r"""Classification: :math:`y \sim \mathrm{softmax}(h)` with logits :math:`h \sim \mathcal N(\mu, v)`, classes last.

    Args:
        num_samples: S, logit samples of ``"sampling"``.
        approximation: how the expectations over the logits are computed.

            - ``"sampling"`` (the paper's): :math:`\frac1S\sum_s \log\mathrm{softmax}(h^s)_y` and
              :math:`\frac1S\sum_s \mathrm{softmax}(h^s)`.
            - ``"second_order"``: :math:`E[\mathrm{lse}(h)] \approx \mathrm{lse}(\mu) + \tfrac12(p\cdot v - p^\top Cp)`,
              where C is the covariance, diagonal unless the output is a :class:`mnvi.JointGaussian`; and the softmax
              expanded to second order, cut at 0 and renormalised.
            - ``"probit"``: :math:`\mathrm{softmax}(\mu/\sqrt{1 + \pi v/8})`, and its logarithm. That logarithm is
              larger than :math:`E[\log p]`: use it to predict, not to train.

            Largest errors against sampling, 2 to 10 classes, :math:`\mu \sim \mathcal N(0, 4)`, for variances up to
            0.15, 0.75, 1.5: ``"second_order"`` 0.002, 0.03, 0.08 in a probability and 0.01, 0.04, 0.1 in the expected
            logarithm; ``"probit"`` 0.02, 0.08, 0.12 in a probability.
        generator: source of the samples, so that results repeat.

    Example:
        >>> import torch, mnvi
        >>> like = mnvi.CategoricalLikelihood(num_samples=64, generator=torch.Generator().manual_seed(0))
        >>> out = mnvi.Gaussian(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2))
        >>> like.predictive(out).probs.sum()
        tensor(1.)
        >>> exact = mnvi.CategoricalLikelihood(approximation="second_order")
        >>> exact.expected_log_prob(out, torch.tensor([0]))
        tensor([-0.2319])
    """

    def __init__(
        self, num_samples: int = 64, approximation: str = "sampling", generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        check_number("CategoricalLikelihood: num_samples", num_samples, least=1, whole=True)
        if approximation not in ("sampling", "second_order", "probit"):
            raise ValueError(
                f"CategoricalLikelihood: approximation={approximation!r} is not one of 'sampling', 'second_order', "
                "'probit'"
            )
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"CategoricalLikelihood: generator={generator!r} must be a torch.Generator or None")
        self.num_samples = num_samples
        self.approximation = approximation
        self.generator = generator

    def expected_log_prob(self, out: Output, y: Tensor) -> Tensor:
        r""":math:`E[\log\mathrm{softmax}(h)_y]` by the chosen approximation, one value per label.

        Args:
            out: the logits, [..., classes]; :class:`mnvi.Samples` are averaged over.
            y: integer labels [...] from 0 to classes − 1, on the output's device.

        Example:
            >>> import torch, mnvi
            >>> mnvi.CategoricalLikelihood().expected_log_prob(torch.zeros(1, 2), torch.tensor([1]))  # −log 2
            tensor([-0.6931])
        """
        _check_labels(out, y)
        index = y.long().unsqueeze(-1)
        if isinstance(out, Gaussian | JointGaussian) and self.approximation == "second_order":
            log_p = F.log_softmax(out.mean, -1)
            spread, common, _ = _softmax_variances(log_p.exp(), out)
            return (log_p - 0.5 * (spread - common)).gather(-1, index).squeeze(-1)
        log_probs = F.log_softmax(self._logits(out), -1)
        if log_probs.dim() > index.dim():
            return log_probs.gather(-1, index.expand(len(log_probs), *index.shape)).squeeze(-1).mean(0)
        return log_probs.gather(-1, index).squeeze(-1)

    def predictive(self, out: Output) -> Categorical:
        r""":math:`E[\mathrm{softmax}(h)]` by the chosen approximation.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> like = mnvi.CategoricalLikelihood(approximation="probit")
            >>> like.predictive(mnvi.Gaussian(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2))).probs
            tensor([[0.8448, 0.1552]])
        """
        _check_logits(out)
        if isinstance(out, Gaussian | JointGaussian) and self.approximation == "second_order":
            p = F.softmax(out.mean, -1)
            spread, common, own = _softmax_variances(p, out)
            bent = p * (1 + 0.5 * (out.var - 2 * own - spread) + common)
            positive = bent.clamp(min=0)
            return Categorical(probs=positive / positive.sum(-1, keepdim=True))
        probs = F.softmax(self._logits(out), -1)
        return Categorical(probs=probs.mean(0) if probs.dim() > len(out.shape) else probs)

    def uncertainty(self, out: Output) -> Uncertainty:
        r"""Entropy of :math:`E[p]`, and the expected entropy of :math:`p = \mathrm{softmax}(h)`. Both are averages over
        freshly drawn samples, whatever the approximation.

        Args:
            out: as in :meth:`expected_log_prob`.
        """
        _check_logits(out)
        if isinstance(out, Tensor):
            total = self.predictive(out).entropy()
            return Uncertainty(total, total, torch.zeros_like(total))
        logits = out.values if isinstance(out, Samples) else out.sample(self.num_samples, self.generator)
        log_probs = F.log_softmax(logits, -1)
        total = Categorical(probs=log_probs.exp().mean(0)).entropy()
        aleatoric = -(log_probs.exp() * log_probs).sum(-1).mean(0)
        return Uncertainty(total, aleatoric, (total - aleatoric).clamp(min=0))

    def _logits(self, out: Output) -> Tensor:
        """Logits of one softmax, or of several with a leading dimension of samples."""
        if isinstance(out, Tensor):
            return out
        if isinstance(out, Samples):
            return out.values
        if self.approximation == "probit":
            return out.mean / (1 + math.pi / 8 * out.var).sqrt()
        return out.sample(self.num_samples, self.generator)


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


def _softmax_variances(p: Tensor, out: Gaussian | JointGaussian) -> tuple[Tensor, Tensor, Tensor]:
    """p·v, pᵀCp and Cp, with a dimension of size one where classes are summed."""
    times_cov = (out.cov @ p.unsqueeze(-1)).squeeze(-1) if isinstance(out, JointGaussian) else out.var * p
    return (p * out.var).sum(-1, keepdim=True), (p * times_cov).sum(-1, keepdim=True), times_cov


def _check_output(owner: str, out: Output) -> None:
    if not isinstance(out, Tensor | Gaussian | JointGaussian | Samples):
        raise TypeError(f"{owner}: out must be a tensor, mnvi.Gaussian or mnvi.Samples, got {type(out).__name__}")
    if isinstance(out, Tensor) and not out.is_floating_point():
        raise TypeError(
            f"{owner}: out is {out.dtype}, but a network's output is floating point; pass the output before the targets"
        )


def _check_tensor(what: str, y: Tensor, device: torch.device) -> None:
    if not isinstance(y, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor, got {type(y).__name__}; use torch.as_tensor")
    if y.device != device:
        raise ValueError(f"{what} are on {y.device}, the output on {device}; move them with .to({str(device)!r})")


def _check_logits(out: Output) -> None:
    _check_output("CategoricalLikelihood", out)
    if len(out.shape) == 0 or out.shape[-1] == 1:
        raise ValueError(
            f"CategoricalLikelihood: the output has shape {tuple(out.shape)}, a single class, whose probability is "
            "always 1; for two classes let the network return two logits"
        )


def _check_labels(out: Output, y: Tensor) -> None:
    _check_logits(out)
    _check_tensor("CategoricalLikelihood: labels", y, out.values.device if isinstance(out, Samples) else out.device)
    expected, classes = out.shape[:-1], out.shape[-1]
    if y.shape == out.shape and values_can_be_read(y) and bool((y.sum(-1) == 1).all()):
        raise ValueError(
            f"CategoricalLikelihood: labels of shape {tuple(y.shape)} look one-hot; expected class indices of shape "
            f"{tuple(expected)}: pass y.argmax(-1)"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"CategoricalLikelihood: labels must be integers, got {y.dtype}")
    if y.shape != expected:
        shapes = f"labels have shape {tuple(y.shape)}, the output {tuple(out.shape)}"
        if len(out.shape) > 2 and y.shape == (*out.shape[:1], *out.shape[2:]):
            raise ValueError(
                f"CategoricalLikelihood: {shapes} with the classes in dimension 1; they must come last: pass "
                "out.movedim(1, -1)"
            )
        hint = "; for two classes let the network return two logits" if y.shape == out.shape else ""
        raise ValueError(f"CategoricalLikelihood: {shapes}; expected labels of shape {tuple(expected)}{hint}")
    if y.device.type == "cpu" and y.numel() and values_can_be_read(y):
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"CategoricalLikelihood: labels run from {low} to {high}; they must be in 0..{classes - 1}"
            )
