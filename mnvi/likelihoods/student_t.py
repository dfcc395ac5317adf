"""Regression with outliers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal, StudentT

from mnvi.likelihoods._checks import check_targets
from mnvi.likelihoods._heads import Number, Pair, two_heads
from mnvi.likelihoods.base import Likelihood, Output, StandardDeviations, Uncertainty, add_up
from mnvi.moments.bounds import bounded
from mnvi.moments.checking import check_number
from mnvi.moments.expectations import log1p_square
from mnvi.moments.normal import safe_sqrt
from mnvi.moments.quadrature import column, gauss_hermite
from mnvi.values.samples import Samples

_NODES, _WEIGHTS = zip(*gauss_hermite(8), strict=True)  # of the log-scale in the expected log-likelihood
_FEW_NODES, _FEW_WEIGHTS = zip(*gauss_hermite(5), strict=True)  # and in the predictive distribution
_MIXTURE = 48  # Gaussians that make up Student's t
_ENTROPY_STEP, _ENTROPY_STEPS = 0.25, 48
_SMALLEST_DF = 2.0  # of learnt degrees of freedom: with fewer there is no variance


class StudentTLikelihood(Likelihood):
    r"""Regression with outliers: :math:`y = \mu + e^c\,t`, where t has Student's distribution with :math:`\nu` degrees
    of freedom.

    The network's last dimension is 2: the location :math:`\mu`, then the log-scale c.

    .. math::
        E[\log p(y)] = A_\nu - c - \frac{\nu + 1}2\,
            E\Big[\log\Big(1 + \frac{(y - \mu)^2}{\nu\,e^{2c}}\Big)\Big], \qquad
        A_\nu = \log\frac{\Gamma(\frac{\nu+1}2)}{\Gamma(\frac\nu2)\sqrt{\nu\pi}}

    The expectation over the log-scale takes 8 Gauss–Hermite nodes, that over the location a trapezoidal rule
    (:func:`mnvi.moments.expectations.log1p_square`). For :math:`\nu = 4` the error is below 1e-5 for
    :math:`v_c \le 0.25`, below 0.002 for :math:`v_c \le 1`, and 0 for known outputs, whatever the variance of the
    location.

    The predictive distribution is a mixture of 240 Gaussians. Student's t is a Gaussian whose precision G has a Gamma
    distribution, so a location :math:`\mu \pm \sqrt{v_\mu}` is included exactly:
    :math:`p(y) = E_{c,G}[\mathcal N(y; \mu, v_\mu + e^{2c}/G)]`. The error of
    its logarithm is below 1e-4 up to 10 scales from the location, up to 100 for :math:`\nu \le 8`, up to 10,000 for
    :math:`\nu \le 4`. The mixture has a mean, a variance and a cumulative distribution.

    The log-variance 2c is bounded as in :class:`mnvi.GaussianLikelihood`. A :class:`mnvi.JointGaussian` counts with the
    covariance of its heads.

    Args:
        df: :math:`\nu > 0`, degrees of freedom; few mean many outliers. Below 2 the noise has no variance.
        learn_df: learn :math:`\nu`, one number above 2 that starts at ``df``.
        outputs: number of targets whose pairs (location, log-scale) follow each other in the last dimension; see
            :class:`mnvi.GaussianLikelihood`.

    Example:
        >>> import torch, mnvi
        >>> like = mnvi.StudentTLikelihood(df=4.0)
        >>> out = mnvi.Gaussian(torch.zeros(2, 2), torch.full((2, 2), 0.1))
        >>> like.expected_log_prob(out, torch.tensor([0.0, 30.0]))  # an outlier costs 13 nats more; with a Gaussian 500
        tensor([ -1.0528, -14.5343])
        >>> like.predictive(out).mean
        tensor([0., 0.])
    """

    def __init__(self, df: float = 4.0, learn_df: bool = False, outputs: int | None = None) -> None:
        super().__init__()
        check_number("StudentTLikelihood: df", df, above=_SMALLEST_DF if learn_df else 0.0)
        if outputs is not None:
            check_number("StudentTLikelihood: outputs", outputs, least=1, whole=True)
        self.outputs = outputs
        self.learn_df = learn_df
        if learn_df:
            excess = float(df) - _SMALLEST_DF
            self.raw_df = nn.Parameter(torch.tensor(excess + math.log(-math.expm1(-excess))))  # of a softplus
        else:
            self.fixed_df = float(df)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom, a tensor without dimensions."""
        if self.learn_df:
            return _SMALLEST_DF + F.softplus(self.raw_df)
        return torch.tensor(self.fixed_df)

    def expected_log_prob(self, out: Output, y: Tensor) -> Tensor:
        """:math:`E_q[\\log p(y|h)]`, one value per target.

        Args:
            out: the network's output, [..., 2]; :class:`mnvi.Samples` are averaged over.
            y: real targets [...], on the output's device.

        Example:
            >>> import torch, mnvi
            >>> mnvi.StudentTLikelihood(df=1.0).expected_log_prob(torch.zeros(1, 2), torch.zeros(1))  # −log π
            tensor([-1.1447])
        """
        heads = self._heads(out)
        sampled = isinstance(out, Samples)
        check_targets("StudentTLikelihood", y, heads.first, sampled)
        df = self._df(heads.first)
        constant = torch.lgamma(0.5 * (df + 1)) - torch.lgamma(0.5 * df) - 0.5 * torch.log(math.pi * df)
        if isinstance(heads.first_var, Tensor):
            logarithm = self._expected_logarithm(heads, y, df)
        else:
            logarithm = torch.log1p((heads.first - y).square() * torch.exp(-bounded(2 * heads.second)) / df)
        value = constant - 0.5 * bounded(2 * heads.second) - 0.5 * (df + 1) * logarithm
        return value.mean(0) if sampled else value

    def predictive(self, out: Output) -> Distribution:
        """A mixture of Gaussians; for a tensor torch's ``StudentT``, for :class:`mnvi.Samples` the mixture of those.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> mnvi.StudentTLikelihood(df=4.0).predictive(torch.zeros(1, 2)).variance
            tensor([2.])
        """
        heads = self._heads(out)
        df = self._df(heads.first)
        if isinstance(heads.first_var, Tensor):
            return _normal_mixture(heads, df)
        scale = _scale(heads)
        if not isinstance(out, Samples):
            return StudentT(df, heads.first, scale)
        members = StudentT(df, heads.first.movedim(0, -1), scale.movedim(0, -1))
        return MixtureSameFamily(Categorical(torch.ones_like(members.loc)), members)

    def uncertainty(self, out: Output) -> Uncertainty:
        r"""Entropy of the prediction, by quadrature, and :math:`E[H_\nu + c]`; :math:`H_\nu` is that of Student's t.

        Args:
            out: as in :meth:`expected_log_prob`.
        """
        heads = self._heads(out)
        aleatoric = StudentT(self._df(heads.first), heads.first, _scale(heads)).entropy()
        if isinstance(out, Tensor):
            return Uncertainty(aleatoric, aleatoric, torch.zeros_like(aleatoric))
        whole = self.predictive(out)
        if isinstance(out, Samples):
            member = StudentT(self._df(heads.first), heads.first, _scale(heads))
            total = _cross_entropy(whole.log_prob, member.log_prob, heads.first, _scale(heads)).mean(0)
            aleatoric = aleatoric.mean(0)
        else:
            width = safe_sqrt(heads.first_var + _scale(heads).square())
            total = _cross_entropy(whole.log_prob, whole.log_prob, heads.first, width)
        aleatoric = torch.minimum(aleatoric, total)  # they may differ by the error of the quadrature
        return Uncertainty(total, aleatoric, total - aleatoric)

    def standard_deviations(self, out: Output) -> StandardDeviations:
        r"""Of each target: aleatoric :math:`\sqrt{\frac{\nu}{\nu - 2}E[e^{2c}]}`, infinite for :math:`\nu \le 2`;
        epistemic :math:`\sqrt{v_\mu}`.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> out = mnvi.Gaussian(torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]))
            >>> mnvi.StudentTLikelihood(df=4.0).standard_deviations(out)
            StandardDeviations(total=tensor([2.]), aleatoric=tensor([1.4142]), epistemic=tensor([1.4142]))
        """
        heads = self._heads(out)
        df = self._df(heads.first)
        widening = torch.where(df > 2, df / (df - 2).clamp(min=torch.finfo(df.dtype).tiny), math.inf)
        noise = widening * torch.exp(bounded(2 * heads.second + 2 * heads.second_var))
        if isinstance(out, Samples):
            return add_up(noise.mean(0), heads.first.var(0, correction=0))
        return add_up(noise, heads.first_var + torch.zeros_like(heads.first))

    def _expected_logarithm(self, heads: Pair, y: Tensor, df: Tensor) -> Tensor:
        """E[log(1 + (y − μ)²/(ν e^{2c}))]."""
        error, error_var, log_var = _given_log_scale(heads, _NODES)
        error = error - y
        precision = torch.exp(-bounded(log_var)) / df
        expected = log1p_square(error.square() * precision, error_var * precision)
        return (column(_WEIGHTS, y) * expected).sum(0)

    def _df(self, like: Tensor) -> Tensor:
        return self.df.to(like)

    def _heads(self, out: Output) -> Pair:
        return two_heads("StudentTLikelihood", out, self.outputs, "log-scale")


def _scale(heads: Pair) -> Tensor:
    return torch.exp(0.5 * bounded(2 * heads.second))


def _given_log_scale(heads: Pair, nodes: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the location given the log-scale, and twice the log-scale, at its nodes [nodes, ...]."""
    assert isinstance(heads.first_var, Tensor) and isinstance(heads.second_var, Tensor)
    sigma = safe_sqrt(heads.second_var)
    node = column(nodes, sigma)
    location, variance = heads.first.unsqueeze(0), heads.first_var
    covariance: Number = heads.covariance
    if isinstance(covariance, Tensor):
        slope = torch.where(sigma > 0, covariance / torch.where(sigma > 0, sigma, 1.0), 0.0)
        location = location + slope * node
        variance = (variance - slope.square()).clamp(min=0)
    log_var = 2 * (heads.second + sigma * node)
    return location.expand_as(log_var), variance.expand_as(log_var), log_var


def _normal_mixture(heads: Pair, df: Tensor) -> MixtureSameFamily:
    """Gaussians with variances v + e^{2c}/G, over nodes of c and, equally spaced, of log G."""
    location, variance, log_var = _given_log_scale(heads, _FEW_NODES)
    root = 8 / df.sqrt()
    first, last = -(80 / df).clamp(max=25.0) - root, torch.log1p(1.5 * root)
    log_precision = first + (last - first) * torch.linspace(0, 1, _MIXTURE, dtype=df.dtype, device=df.device)
    weights = torch.log_softmax(0.5 * df * (log_precision - log_precision.exp()), 0)
    each = column(_FEW_WEIGHTS, weights).log() + weights  # [nodes of c, nodes of log G]
    noise = torch.exp(bounded(log_var).unsqueeze(-1) - log_precision)
    std = (variance.unsqueeze(-1) + noise).sqrt()
    place = location.unsqueeze(-1).expand_as(std)
    std, place = (t.movedim(0, -2).flatten(-2) for t in (std, place))
    return MixtureSameFamily(Categorical(logits=each.flatten().expand_as(std)), Normal(place, std))


def _cross_entropy(
    whole: Callable[[Tensor], Tensor], part: Callable[[Tensor], Tensor], centre: Tensor, width: Tensor
) -> Tensor:
    """−∫ part(y) log whole(y) dy by the trapezoidal rule, with y = centre + width·sinh(t) to reach the tails."""
    total = torch.zeros_like(centre)
    for step in range(-_ENTROPY_STEPS, _ENTROPY_STEPS + 1):
        t = step * _ENTROPY_STEP
        y = centre + width * math.sinh(t)
        total = total - _ENTROPY_STEP * math.cosh(t) * width * part(y).exp() * whole(y)
    return total
