r"""Piecewise linear functions: exact moments, taken around :math:`f(\mu)` so that no digits cancel.

Around the mean a piecewise linear function is its local line plus one hinge per kink; each hinge is zero on the mean's
side. The excess :math:`t = \varphi(a) - a\,\Phi(-a)` of a kink at distance :math:`a\sigma` and its tail
:math:`q = \Phi(-a)` give every moment. The only errors are those of the arithmetic: in float32 below :math:`10^{-5}` of
the natural scale (:math:`\sigma` for means, :math:`\sigma^2` for variances, times the steepest slope; the range where
that is smaller; plus the height of a jump), measured for :math:`|\mu|/\sigma \le 50` and variances from 1e-12 to 1e6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnvi.moments.lean import lean
from mnvi.moments.normal import (
    INV_SQRT_2PI,
    SMALLEST_VARIANCE,
    SQRT_HALF,
    bounded_sqrt,
    choose,
    density,
    distance,
    tail,
    tail_and_excess,
)
from mnvi.moments.quadrature import column, gauss_legendre

_NODES, _WEIGHTS = zip(*gauss_legendre(3), strict=True)


@lean
def kink(mean: Tensor, var: Tensor, above: Tensor | float, below: Tensor | float) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`p\,Z` for :math:`Z > 0` and :math:`n\,Z` for :math:`Z < 0`; exact.

    With :math:`a = |\mu|/\sigma`, and :math:`s` the slope on the mean's side, :math:`r` the other one:

    .. math:: E = s\mu + (p - n)\,\sigma t, \qquad V = \sigma^2\,(s^2 (1 - q) + r^2 q - (p - n)^2\, t\,(t + a)).

    Args:
        mean: :math:`\mu`.
        var: :math:`\sigma^2`.
        above: the slope :math:`p` above zero.
        below: the slope :math:`n` below zero.

    Example:
        >>> import torch
        >>> kink(torch.zeros(1), torch.ones(1), above=1.0, below=-1.0)  # |Z|: √(2/π) and 1 - 2/π
        (tensor([0.7979]), tensor([0.3634]))
    """
    sigma = bounded_sqrt(var)
    a = distance(mean, sigma)
    q, t = tail_and_excess(a)
    slopes = _as_tensor(above, mean), _as_tensor(below, mean)
    near, far = choose(mean >= 0, *slopes), choose(mean < 0, *slopes)
    bend = above - below
    expectation = near * mean + bend * sigma * t
    variance = var * (near * near * (1 - q) + far * far * q - bend * bend * t * (t + a)).clamp(min=0)
    return expectation, variance


@lean
def at_least(mean: Tensor, var: Tensor, low: Tensor | float) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\max(Z, l)`, a shifted ReLU; exact.

    With :math:`a = |\mu - l|/\sigma`, :math:`E = \max(\mu, l) + \sigma t` and
    :math:`V = \sigma^2\,(\Phi(\tfrac{\mu - l}\sigma) - t\,(t + a))`.

    Example:
        >>> import torch
        >>> at_least(torch.ones(1), torch.ones(1), low=1.0)
        (tensor([1.3989]), tensor([0.3408]))
    """
    sigma = bounded_sqrt(var)
    a = distance(mean - low, sigma)
    q, t = tail_and_excess(a)
    variance = var * (choose(mean >= low, 1 - q, q) - t * (t + a)).clamp(min=0)
    return mean.clamp(min=low) + sigma * t, variance


@lean
def random_kink(mean: Tensor, var: Tensor, *, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z` above zero and :math:`SZ` below it, :math:`S` uniform and independent of :math:`Z`; exact.

    The variance is that for the mean slope, plus :math:`\mathrm{Var}[S]\,E[Z^2; Z < 0]`.

    Example:
        >>> import torch
        >>> random_kink(torch.zeros(1), torch.ones(1), lowest=0.0, highest=1.0)
        (tensor([0.1995]), tensor([0.6269]))
    """
    sigma = bounded_sqrt(var)
    a = distance(mean, sigma)
    q, t = tail_and_excess(a)
    tail_square = var * (q - a * t).clamp(min=0)  # E[Z²] beyond zero, seen from the mean
    negative_square = choose(mean >= 0, tail_square, mean.square() + var - tail_square)
    expectation, variance = kink(mean, var, above=1.0, below=0.5 * (lowest + highest))
    return expectation, variance + (highest - lowest) ** 2 / 12 * negative_square


@lean
def ramp(
    mean: Tensor,
    var: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    outer: Tensor | float = 0.0,
    inner: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`o\,Z + (i - o)\,\mathrm{clamp}(Z, l, h)`: slope ``inner`` in between, else ``outer``; exact.

    Seen from the nearer end, with :math:`u = \min(\mu - l, h - \mu)`, the distances are :math:`a = |u|/\sigma` and
    :math:`b = (h - l - u)/\sigma`. With the slope :math:`s` at the mean, :math:`k = i - o`, and the plus sign for
    a mean outside,

    .. math::
        E &= f(\mu) + k\,\sigma\,(t_a - t_b)\,\mathrm{sign}(\tfrac{l + h}2 - \mu), \\
        V &= \sigma^2\bigl(s^2 + 2sk\,(\pm q_a - q_b) + k^2\,[v_a + v_b - 2c]\bigr), \qquad v_a = q_a - t_a(t_a + a),

    where :math:`c` is the covariance of the two hinges: :math:`-t_a t_b` for a mean in between, else
    :math:`q_b - t_b(a + t_a)`.
    Where :math:`w = (h - l)/\sigma` is small the hinges nearly cancel; there the moments of the clamped value come from
    three Gauss–Legendre nodes of :math:`E[c^k] = \int k u^{k-1} P(c > u)\,du`, whose relative error is about
    :math:`10^{-5} w^5`.

    Args:
        mean: :math:`\mu`.
        var: :math:`\sigma^2`.
        low: :math:`l`.
        high: :math:`h \ge l`.
        outer: :math:`o`.
        inner: :math:`i`.

    Example:
        >>> import torch
        >>> ramp(torch.tensor([3.0]), torch.tensor([4.0]), low=0.0, high=6.0)
        (tensor([3.]), tensor([3.1139]))
    """
    sigma = bounded_sqrt(var)
    step, span = inner - outer, high - low
    direction = torch.sign((low - mean) + (high - mean))
    inward = torch.minimum(mean - low, high - mean)
    outside = inward < 0
    start, width = -inward / sigma, span / sigma
    a, b = distance(inward, sigma), distance(span - inward, sigma)
    (qa, ta), (qb, tb) = tail_and_excess(a), tail_and_excess(b)
    slope = choose(outside, _as_tensor(outer, mean), _as_tensor(inner, mean))
    shared = choose(outside, qb - tb * (a + ta), -ta * tb)
    hinges = (qa - ta * (ta + a)) + (qb - tb * (tb + b)) - 2 * shared
    variance = var * (slope * slope + 2 * slope * step * (choose(outside, qa, -qa) - qb) + step * step * hinges)
    clamped = mean.clamp(low, high)  # type: ignore[arg-type]  # two numbers or two tensors
    clamped = clamped + direction * sigma * (ta - tb)

    nodes, weights = column(_NODES, start), column(_WEIGHTS, start)
    x = start + nodes * width
    beyond = weights * tail(x)
    first, second = beyond.sum(0), 2 * (nodes * beyond).sum(0)
    chance = (weights * density(x)).sum(0)
    narrow_clamped = 0.5 * (low + high) - direction * (span * (0.5 - first))
    narrow_var = var * outer * (outer + 2 * step * width * chance) + (step * span) ** 2 * (second - first.square())

    narrow = width < _narrow(var.dtype)
    expectation = outer * mean + step * choose(narrow, narrow_clamped, clamped)
    return expectation, choose(narrow, narrow_var, variance).clamp(min=0)


def _as_tensor(value: Tensor | float, like: Tensor) -> Tensor:
    """The value as a tensor: a choice between two Python numbers would be float32, whatever the dtype of the rest."""
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=like.dtype, device=like.device)


def _narrow(dtype: torch.dtype) -> float:
    """The width at which rounding (ε/w²) and the three nodes (1e-5·w⁵) have equal errors."""
    return float((1e5 * torch.finfo(dtype).eps) ** (1 / 7))


@lean
def threshold(mean: Tensor, var: Tensor, *, threshold: float, value: float) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z` where :math:`Z > \theta`, a constant :math:`c` elsewhere; exact.

    Around :math:`f(\mu)`, with :math:`a = |\mu - \theta|/\sigma`: for :math:`\mu > \theta`
    :math:`E[g] = \sigma\varphi(a) + (c - \mu)q`, :math:`E[g^2] = \sigma^2(1 - q - a\varphi(a)) + (c - \mu)^2 q`;
    otherwise, with :math:`k = \theta - c`, :math:`E[g] = kq + \sigma t`,
    :math:`E[g^2] = k^2 q + 2k\sigma t + \sigma^2(q - at)`.

    Example:
        >>> import torch
        >>> threshold(torch.zeros(1), torch.ones(1), threshold=0.0, value=0.0)  # the ReLU
        (tensor([0.3989]), tensor([0.3408]))
    """
    sigma = bounded_sqrt(var)
    q, t, a, peak = _whole_tail(mean - threshold, sigma)
    passes = mean > threshold
    drop, jump = value - mean, threshold - value
    first = torch.where(passes, sigma * peak + drop * q, jump * q + sigma * t)
    second = torch.where(
        passes, var * (1 - q - a * peak) + drop * drop * q, jump * jump * q + 2 * jump * sigma * t + var * (q - a * t)
    )
    random = var > SMALLEST_VARIANCE  # without noise a mean on the jump is on one side of it
    variance = torch.where(random, second - first.square(), 0.0).clamp(min=0)
    return torch.where(passes, mean, value) + torch.where(random, first, 0.0), variance


@lean
def hardshrink(mean: Tensor, var: Tensor, *, lambd: float) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z` where :math:`|Z| > \lambda`, zero elsewhere; exact.

    Both sides are treated like the upper one of :func:`threshold`, at distances :math:`||\mu| - \lambda|/\sigma` and
    :math:`(|\mu| + \lambda)/\sigma`.

    Example:
        >>> import torch
        >>> hardshrink(torch.zeros(1), torch.ones(1), lambd=0.5)
        (tensor([0.]), tensor([0.9691]))
    """
    sigma = bounded_sqrt(var)
    size = mean.abs()
    (qa, ta, a, pa), (qb, tb, b, pb) = _whole_tail(size - lambd, sigma), _whole_tail(size + lambd, sigma)
    passes = size > lambd
    inside = qa - qb
    first = torch.where(passes, sigma * (pa - pb) - size * inside, lambd * inside + sigma * (ta - tb))
    both = lambd * lambd * (qa + qb) + 2 * lambd * sigma * (ta + tb) + var * ((qa - a * ta) + (qb - b * tb))
    second = torch.where(passes, var * ((1 - qa - a * pa) + (qb + b * pb)) + size * size * inside, both)
    random = var > SMALLEST_VARIANCE
    expectation = torch.where(passes, size, 0.0) + torch.where(random, first, 0.0)
    variance = torch.where(random, second - first.square(), 0.0).clamp(min=0)
    return torch.where(mean >= 0, expectation, -expectation), variance


def _whole_tail(difference: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, t, a and φ(a) without a bound on a: a jump shows in full in the smallest tail, even without noise."""
    a = difference.abs() / sigma
    q = 0.5 * torch.erfc(SQRT_HALF * a)
    peak = INV_SQRT_2PI * torch.exp(-0.5 * a * a)
    return q, (peak - a * q).clamp(min=0), a, peak
