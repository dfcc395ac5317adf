"""Counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Poisson, constraints
from torch.distributions.utils import broadcast_all

from mnvi.likelihoods._checks import can_check_values, check_targets
from mnvi.likelihoods._heads import one_head
from mnvi.likelihoods.base import Likelihood, Output, StandardDeviations, Uncertainty
from mnvi.moments.bounds import bounded
from mnvi.moments.normal import safe_sqrt
from mnvi.moments.quadrature import column, gauss_hermite
from mnvi.values.samples import Samples

_NODES, _WEIGHTS = zip(*gauss_hermite(24), strict=True)
_RATES, _RATE_WEIGHTS = zip(*gauss_hermite(16), strict=True)  # of expectations over the rate
_COUNTS = 12  # nodes of expectations over the count, given the rate
_NEWTON_STEPS = 6
_SMALLEST = 1e-6  # standard deviation below which the log-rate counts as known when the peak is searched


class PoissonLogNormal(Distribution):
    r"""Counts with an uncertain rate: :math:`y \sim \mathrm{Poisson}(e^h)`, :math:`h \sim \mathcal N(\mu, \sigma^2)`.

    .. math::
        p(y) = \int \frac{e^{yh - e^h}}{y!}\,\mathcal N(h; \mu, \sigma^2)\,dh, \qquad
        E[y] = \lambda = e^{\mu + \sigma^2/2}, \qquad V[y] = \lambda + \lambda^2 (e^{\sigma^2} - 1)

    The integral has no closed form. For each count, 24 Gauss–Hermite nodes are placed around the peak of the
    integrand, with its curvature as their width; fixed nodes would miss the peak of a large count. The error of
    ``log_prob`` is below 1e-6 for :math:`\sigma \le 1`, 1e-4 for 2 and 0.003 for 4. Exponents beyond ±22 (float32) are
    bounded as in :func:`mnvi.moments.bounds.bounded`.

    Args:
        loc: :math:`\mu`, mean of the log-rate.
        scale: :math:`\sigma \ge 0`, its standard deviation.

    Example:
        >>> import torch
        >>> counts = PoissonLogNormal(torch.tensor(1.0), torch.tensor(0.5))
        >>> counts.mean, counts.variance
        (tensor(3.0802), tensor(5.7750))
        >>> counts.log_prob(torch.arange(60.0)).exp().sum()
        tensor(1.0000)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.nonnegative}
    support = constraints.nonnegative_integer

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        self._bound = self.loc.dtype  # whose bound of the exponents applies
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> PoissonLogNormal:
        new = self._get_checked_instance(PoissonLogNormal, _instance)
        new.loc, new.scale = self.loc.expand(batch_shape), self.scale.expand(batch_shape)
        new._bound = self._bound
        super(PoissonLogNormal, new).__init__(new.loc.shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        return torch.exp(bounded(self.loc + 0.5 * self.scale.square()))

    @property
    def rate_stddev(self) -> Tensor:
        r"""Standard deviation of the rate, :math:`\lambda\sqrt{e^{\sigma^2} - 1}`."""
        return self.mean * safe_sqrt(torch.expm1(bounded(self.scale.square())))

    @property
    def variance(self) -> Tensor:
        return self.mean + self.rate_stddev.square()

    @property
    def stddev(self) -> Tensor:
        return torch.hypot(self.mean.sqrt(), self.rate_stddev)  # the square of a large rate would overflow

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 (as in torch)
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
            return torch.poisson(torch.exp(bounded(self.loc + self.scale * noise)))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return self._log_prob(value)

    def entropy(self) -> Tensor:
        """In nats, by quadrature over the rate and over the count."""
        counts = PoissonLogNormal(self.loc.double(), self.scale.double(), validate_args=False)
        counts._bound = self._bound
        total = torch.zeros_like(counts.loc)
        for rate, weight in _rates(self.loc, self.scale):
            total = total - weight * _over_counts(rate, counts._log_prob)
        return total.to(self.loc.dtype)

    def _log_prob(self, value: Tensor) -> Tensor:
        """The same for any real number; with :math:`h = \\mu + \\sigma u`."""
        loc, scale, value = torch.broadcast_tensors(self.loc, self.scale, value.to(self.loc.dtype))
        with torch.no_grad():  # the integral does not depend on where its nodes are
            centre, width = _peak(loc, scale, value)
        u = centre + width * column(_NODES, loc)
        h = bounded(loc + scale * u, self._bound)
        density = width.log() - 0.5 * u.square() + value * h - torch.exp(h)
        weights = column([math.log(w) + 0.5 * t * t for t, w in zip(_NODES, _WEIGHTS, strict=True)], loc)
        return torch.logsumexp(weights + density, 0) - torch.lgamma(value + 1)


class PoissonLikelihood(Likelihood):
    r"""Counts: :math:`y \sim \mathrm{Poisson}(e^h)`. The network predicts the log-rate,
    :math:`h \sim \mathcal N(\mu, v)`.

    The expected log-likelihood is exact. The predictive distribution is a :class:`mnvi.likelihoods.PoissonLogNormal`.

    .. math:: E[\log p(y|h)] = y\mu - e^{\mu + v/2} - \log y!

    Log-rates beyond ±22 (float32; rates from 2.3e-10 to 4.3e9) are bounded as in
    :func:`mnvi.moments.bounds.bounded`, so that inputs that nobody has scaled do not overflow.

    Example:
        >>> import torch, mnvi
        >>> like = mnvi.PoissonLikelihood()
        >>> out = mnvi.Gaussian(torch.ones(5), torch.full((5,), 0.25))
        >>> like.expected_log_prob(out, torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]))
        tensor([-3.0802, -2.0802, -1.7734, -1.8720, -2.2583])
        >>> like.predictive(out).mean[0]
        tensor(3.0802)
    """

    def __init__(self) -> None:
        super().__init__()

    def expected_log_prob(self, out: Output, y: Tensor) -> Tensor:
        r""":math:`y\mu - e^{\mu + v/2} - \log y!`, one value per target.

        Args:
            out: the log-rates, [...]; :class:`mnvi.Samples` are averaged over.
            y: counts in the shape of the log-rates, on their device, any real dtype.

        Example:
            >>> import torch, mnvi
            >>> mnvi.PoissonLikelihood().expected_log_prob(torch.zeros(1), torch.zeros(1))
            tensor([-1.])
        """
        log_rate, var = one_head("PoissonLikelihood", out)
        sampled = isinstance(out, Samples)
        check_targets("PoissonLikelihood", y, log_rate, sampled)
        _check_counts(y)
        y = y.to(log_rate.dtype)
        rate = torch.exp(bounded(log_rate if var is None else log_rate + 0.5 * var))
        value = y * bounded(log_rate) - rate - torch.lgamma(y + 1)
        return value.mean(0) if sampled else value

    def predictive(self, out: Output) -> Distribution:
        """A ``PoissonLogNormal``; for a tensor torch's ``Poisson``, for :class:`mnvi.Samples` their mixture.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> mnvi.PoissonLikelihood().predictive(torch.zeros(1)).mean
            tensor([1.])
        """
        log_rate, var = one_head("PoissonLikelihood", out)
        if var is not None:
            return PoissonLogNormal(log_rate, safe_sqrt(var))
        if not isinstance(out, Samples):
            return Poisson(_rate(log_rate))
        members = Poisson(_rate(log_rate).movedim(0, -1))
        return MixtureSameFamily(Categorical(torch.ones_like(members.mean)), members)

    def uncertainty(self, out: Output) -> Uncertainty:
        """Entropy of the predicted count, and the expected entropy of the count given its rate; both by quadrature.

        Args:
            out: as in :meth:`expected_log_prob`.
        """
        log_rate, var = one_head("PoissonLikelihood", out)
        if var is not None:
            total = PoissonLogNormal(log_rate, safe_sqrt(var)).entropy().double()
            aleatoric = torch.zeros_like(total)
            for rate, weight in _rates(log_rate, safe_sqrt(var)):
                aleatoric = aleatoric + weight * _poisson_entropy(rate)
        elif isinstance(out, Samples):
            rates = _rate(log_rate).double()
            aleatoric = _poisson_entropy(rates).mean(0)
            total = -torch.stack([_over_counts(rate, lambda y: _mixture(y, rates)) for rate in rates]).mean(0)
        else:
            total = aleatoric = _poisson_entropy(_rate(log_rate).double())
        aleatoric = torch.minimum(aleatoric, total)  # they may differ by rounding
        return Uncertainty(*(part.to(log_rate.dtype) for part in (total, aleatoric, total - aleatoric)))

    def standard_deviations(self, out: Output) -> StandardDeviations:
        r"""Of each count: aleatoric :math:`\sqrt{E[e^h]}`, epistemic that of the rate,
        :math:`E[e^h]\sqrt{e^v - 1}`.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> mnvi.PoissonLikelihood().standard_deviations(mnvi.Gaussian(torch.ones(1), torch.full((1,), 0.25)))
            StandardDeviations(total=tensor([2.4031]), aleatoric=tensor([1.7551]), epistemic=tensor([1.6416]))
        """
        log_rate, var = one_head("PoissonLikelihood", out)
        if var is not None:
            counts = PoissonLogNormal(log_rate, safe_sqrt(var))
            return StandardDeviations(counts.stddev, counts.mean.sqrt(), counts.rate_stddev)
        rate = _rate(log_rate)
        if isinstance(out, Samples):
            noise, spread = rate.mean(0).sqrt(), rate.std(0, correction=0)
            return StandardDeviations(torch.hypot(noise, spread), noise, spread)
        return StandardDeviations(rate.sqrt(), rate.sqrt(), torch.zeros_like(rate))


def _rate(log_rate: Tensor) -> Tensor:
    return torch.exp(bounded(log_rate))


def _peak(loc: Tensor, scale: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Peak and width, in units of the log-rate's standard deviation, of the integrand of one count.

    At the peak :math:`h + v e^h = \\mu + v y`; with :math:`w = v e^h` this is :math:`\\log w + w = z`, which Newton's
    method solves for the logarithm of w, from the right, where the steps do not overshoot.
    """
    scale = scale.clamp(min=_SMALLEST)
    var = scale.square()
    z = var.log() + loc + var * value
    log_w = torch.where(z > 1, z.clamp(min=1).log(), z - torch.sigmoid(z))
    for _ in range(_NEWTON_STEPS):
        w = log_w.exp()
        log_w = log_w - (log_w + w - z) / (1 + w)
    w = log_w.exp()
    by_rate = scale * value - w / scale  # loses digits where the count is large, the other where the variance is small
    by_log_rate = (log_w - var.log() - loc) / scale
    return torch.where(var * value > 1, by_log_rate, by_rate), (1 + w).rsqrt()


def _rates(loc: Tensor, scale: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Nodes of the rate, bounded for the dtype of the log-rate but in float64, with their weights."""
    for node, weight in zip(_RATES, _RATE_WEIGHTS, strict=True):
        yield _rate(loc + scale * node).double(), weight


def _over_counts(rate: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    r"""Expected value of a smooth function of a Poisson count: Gauss quadrature with its orthogonal (Charlier)
    polynomials.

    The nodes, which are no whole numbers, are the eigenvalues of the tridiagonal matrix of their recurrence, with
    :math:`\lambda + k` on the diagonal and :math:`\sqrt{\lambda k}` beside it.
    """
    steps = torch.arange(_COUNTS, dtype=rate.dtype, device=rate.device)
    diagonal = rate.unsqueeze(-1) + steps
    beside = torch.diag_embed((rate.unsqueeze(-1) * steps[1:]).sqrt(), 1)
    counts, vectors = torch.linalg.eigh(torch.diag_embed(diagonal) + beside + beside.mT)
    values = function(counts.clamp(min=0).movedim(-1, 0))
    return (vectors[..., 0, :].square().movedim(-1, 0) * values).sum(0)


def _poisson_entropy(rate: Tensor) -> Tensor:
    return -_over_counts(rate, lambda y: _mixture(y, rate.unsqueeze(0)))


def _mixture(y: Tensor, rates: Tensor) -> Tensor:
    """Log-probability of counts [nodes, ...], also between whole numbers, under equally likely rates [members, ...]."""
    each = torch.stack([y * rate.log() - rate for rate in rates])
    return each.logsumexp(0) - math.log(len(rates)) - torch.lgamma(y + 1)


def _check_counts(y: Tensor) -> None:
    if can_check_values(y) and bool(((y < 0) | (y != y.round())).any()):
        wrong = y[(y < 0) | (y != y.round())][0]
        raise ValueError(
            f"PoissonLikelihood: targets contain {wrong.item():g}; they must be counts: 0, 1, 2, ... For real numbers "
            "use GaussianLikelihood or StudentTLikelihood"
        )
