r"""Piecewise linear functions: exact moments, taken around :math:`f(\mu)` so that no digits cancel.

Around the mean a piecewise linear function is its local line plus one hinge for every kink, each hinge zero on the
mean's side. The excess :math:`t = \varphi(a) - a\,\Phi(-a)` of a kink at distance :math:`a\sigma` and its tail
:math:`q = \Phi(-a)` give every moment. Errors are those of the arithmetic: in float32 below :math:`10^{-5}` of the
natural scale (:math:`\sigma` for means, :math:`\sigma^2` for variances, times the steepest slope; the range where that
is smaller; plus the height of a jump), measured for :math:`|\mu|/\sigma \le 50` and variances from 1e-12 to 1e6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnvi.moments.lean import lean
from mnvi.moments.normal import bounded_sqrt, density, tail, tail_and_excess
from mnvi.moments.quadrature import gauss_legendre

_TWO_NODES = gauss_legendre(2)


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
    a = mean.abs() / sigma
    q, t = tail_and_excess(a)
    slopes = _as_tensor(above, mean), _as_tensor(below, mean)
    near, far = torch.where(mean >= 0, *slopes), torch.where(mean < 0, *slopes)
    bend = above - below
    expectation = near * mean + bend * sigma * t
    variance = var * (near * near * (1 - q) + far * far * q - bend * bend * t * (t + a)).clamp(min=0)
    return expectation, variance


@lean
def random_kink(mean: Tensor, var: Tensor, *, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z` above zero and :math:`SZ` below it, :math:`S` uniform and independent of :math:`Z`; exact.

    The variance is that of the mean slope, and :math:`\mathrm{Var}[S]\,E[Z^2; Z < 0]` on top.

    Example:
        >>> import torch
        >>> random_kink(torch.zeros(1), torch.ones(1), lowest=0.0, highest=1.0)
        (tensor([0.1995]), tensor([0.6269]))
    """
    sigma = bounded_sqrt(var)
    a = mean.abs() / sigma
    q, t = tail_and_excess(a)
    tail_square = var * (q - a * t).clamp(min=0)  # E[Z²] beyond zero, seen from the mean
    negative_square = torch.where(mean >= 0, tail_square, mean.square() + var - tail_square)
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

    With the distances :math:`a = |\mu - l|/\sigma`, :math:`b = |\mu - h|/\sigma`, the slope :math:`s` at the mean and
    :math:`k = i - o`:

    .. math::
        E &= f(\mu) + k\,\sigma\,(t_a - t_b), \\
        V &= \sigma^2\bigl(s^2 + 2sk\,(\pm q_a \mp q_b) + k^2\,[v_a + v_b - 2c]\bigr), \qquad v = q - t(t + a),

    where the sign of a kink's tail is positive above the mean, and :math:`c` is the covariance of the two hinges:
    :math:`-t_a t_b` for a mean in between, else :math:`q_\text{far} - t_\text{far}(a_\text{near} + t_\text{near})`.
    Where :math:`w = (h - l)/\sigma` is small the hinges nearly cancel; there the moments of the clamped value come from
    two Gauss–Legendre nodes of :math:`E[c^k] = \int k u^{k-1} P(c > u)\,du`, whose relative error is
    :math:`w^4/4320`.

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
    step = inner - outer
    below, above = mean < low, mean > high
    a, b = (mean - low).abs() / sigma, (mean - high).abs() / sigma
    (qa, ta), (qb, tb) = tail_and_excess(a), tail_and_excess(b)
    slope = torch.where(below | above, _as_tensor(outer, mean), _as_tensor(inner, mean))
    shared = torch.where(below, qb - tb * (a + ta), torch.where(above, qa - ta * (b + tb), -ta * tb))
    tails = torch.where(below, qa, -qa) - torch.where(above, -qb, qb)
    hinges = (qa - ta * (ta + a)) + (qb - tb * (tb + b)) - 2 * shared
    variance = var * (slope * slope + 2 * slope * step * tails + step * step * hinges)
    clamped = torch.where(below, low, torch.where(above, high, mean))
    shift = sigma * (ta - tb)

    width = (high - low) / sigma
    low_half = mean - low <= high - mean
    start = torch.where(low_half, low - mean, mean - high) / sigma
    chance, first, second = torch.zeros_like(mean), torch.zeros_like(mean), torch.zeros_like(mean)
    for node, weight in _TWO_NODES:
        x = start + node * width
        beyond = weight * tail(x)
        chance = chance + weight * density(x)
        first = first + beyond
        second = second + 2 * node * beyond
    span = high - low
    narrow_mean = torch.where(low_half, low + span * first, high - span * first)
    narrow_var = var * outer * (outer + 2 * step * width * chance) + (step * span) ** 2 * (second - first.square())

    narrow = width < _narrow(var.dtype)
    expectation = outer * mean + step * torch.where(narrow, narrow_mean, clamped + shift)
    return expectation, torch.where(narrow, narrow_var, variance).clamp(min=0)


def _as_tensor(value: Tensor | float, like: Tensor) -> Tensor:
    """A choice between two Python numbers would be a float32 tensor, whatever the dtype of the rest."""
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=like.dtype, device=like.device)


def _narrow(dtype: torch.dtype) -> float:
    """The width at which rounding (ε/w²) and the two nodes (w⁴/4320) err alike."""
    return float((4320 * torch.finfo(dtype).eps) ** (1 / 6))


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
    a = (mean - threshold).abs() / sigma
    q, t = tail_and_excess(a)
    passes = mean > threshold
    peak = density(a)
    drop, jump = value - mean, threshold - value
    first = torch.where(passes, sigma * peak + drop * q, jump * q + sigma * t)
    second = torch.where(
        passes, var * (1 - q - a * peak) + drop * drop * q, jump * jump * q + 2 * jump * sigma * t + var * (q - a * t)
    )
    return torch.where(passes, mean, value) + first, (second - first.square()).clamp(min=0)


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
    a, b = (size - lambd).abs() / sigma, (size + lambd) / sigma
    (qa, ta), (qb, tb) = tail_and_excess(a), tail_and_excess(b)
    pa, pb = density(a), density(b)
    passes = size > lambd
    inside = qa - qb
    first = torch.where(passes, sigma * (pa - pb) - size * inside, lambd * inside + sigma * (ta - tb))
    both = lambd * lambd * (qa + qb) + 2 * lambd * sigma * (ta + tb) + var * ((qa - a * ta) + (qb - b * tb))
    second = torch.where(passes, var * ((1 - qa - a * pa) + (qb + b * pb)) + size * size * inside, both)
    expectation = torch.where(passes, size, 0.0) + first
    return torch.where(mean >= 0, expectation, -expectation), (second - first.square()).clamp(min=0)
