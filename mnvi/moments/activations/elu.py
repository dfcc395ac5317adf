"""ELU, CELU, SELU: a line above zero, an exponential below."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnvi.moments.lean import lean
from mnvi.moments.normal import bounded_sqrt, choose, density, distance, proportional, tail_and_excess
from mnvi.moments.quadrature import column, gauss_legendre

_WIDE = 1.0  # σ from which the closed form is used
_NODES, _WEIGHTS = zip(*gauss_legendre(18), strict=True)
_REACH = 5.5  # standard deviations; 4e-8 of the mass lies beyond
_NOTHING = -45.0  # its exp is 3e-20; exp becomes slow where it underflows
_FRACTION_FROM = 2.0  # where a short continued fraction takes over from exp(x²)·erfc(x)
_FRACTION_LEVELS = 14


@lean
def elu(
    mean: Tensor, var: Tensor, *, slope: float = 1.0, depth: float = 1.0, rate: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`p\,Z` above zero and :math:`c\,(e^{rZ} - 1)` below.

    With :math:`N = e^{\min(rZ, 0)} - 1 \le 0` and the moments :math:`E_R, V_R` of the ReLU,

    .. math:: E = pE_R + cE[N], \qquad V = p^2 V_R + c^2 V[N] - 2pc\,E_R E[N],

    a sum of positive terms. From :math:`r\sigma = 1` on
    :math:`E[e^{krZ}; Z < 0] = e^{kr\mu + (kr\sigma)^2/2}\,\Phi(-\mu/\sigma - kr\sigma)` gives :math:`N`'s moments in
    closed form (as a scaled complementary error function, which does not overflow); below, 18 Gauss–Legendre nodes on
    the negative side give them, around :math:`N(\mu)`. Relative to :math:`\sigma` and :math:`\sigma^2` times the
    steepest slope the error is below :math:`3\cdot10^{-6}`.

    Args:
        mean: :math:`\mu`.
        var: :math:`\sigma^2`.
        slope: :math:`p`.
        depth: :math:`c`.
        rate: :math:`r > 0`.

    Example:
        >>> import torch
        >>> elu(torch.zeros(1), torch.ones(1))
        (tensor([0.1605]), tensor([0.6192]))
    """
    mu, square = rate * mean, rate * rate * var
    sigma = bounded_sqrt(square)
    a = distance(mu, sigma)
    q, t = tail_and_excess(a)
    positive = mu >= 0
    above = choose(positive, 1 - q, q)
    rectified = mu.clamp(min=0) + sigma * t
    rectified_var = square * (above - t * (t + a)).clamp(min=0)

    narrow = square < _WIDE**2
    small = bounded_sqrt(square, _WIDE)
    shift, narrow_var = _narrow(mu, small, above)
    narrow_var = proportional(narrow_var, square, small)
    start = torch.expm1(mu.clamp(max=0))
    first, second = (_truncated_exponential(mu, sigma.clamp(min=_WIDE), k) for k in (1, 2))
    below = choose(positive, q, 1 - q)
    wide = first - below
    share = first / below.clamp(min=torch.finfo(below.dtype).tiny)  # E[exp Z | Z < 0]
    wide_var = second - first * share - above * wide * (1 - share)
    saturating = choose(narrow, start + shift, wide)
    saturating_var = choose(narrow, narrow_var, wide_var).clamp(min=0)

    p = slope / rate
    expectation = p * rectified + depth * saturating
    product = proportional(rectified * saturating, square, sigma)
    return expectation, p * p * rectified_var + depth * depth * saturating_var - 2 * p * depth * product


def _narrow(mu: Tensor, sigma: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """E[N] - N(μ) and V[N]: nodes below zero, a constant above."""
    anchor = mu.clamp(max=0)
    scale = torch.exp(anchor.clamp(min=_NOTHING))
    length = (-mu / sigma).clamp(-_REACH, _REACH) + _REACH
    x = column(_NODES, mu) * length - _REACH
    mass = column(_WEIGHTS, mu) * length * density(x)
    step = scale * torch.expm1((sigma * x + (mu - anchor)).clamp(max=_REACH * _WIDE))
    rest = -torch.expm1(anchor)
    first = (mass * step).sum(0) + above * rest
    return first, (mass * step.square()).sum(0) + above * rest.square() - first.square()


def _truncated_exponential(mu: Tensor, sigma: Tensor, k: int) -> Tensor:
    """E[exp(kZ); Z < 0]."""
    d = mu / sigma
    y = d + k * sigma
    scaled = 0.5 * torch.exp((-0.5 * d * d).clamp(min=_NOTHING)) * erfcx(math.sqrt(0.5) * y.abs())
    whole = torch.exp((k * mu + 0.5 * k * k * sigma * sigma).clamp(min=_NOTHING, max=0.0))
    return choose(y > 0, scaled, whole - scaled)


def erfcx(x: Tensor) -> Tensor:
    r""":math:`e^{x^2}\,\mathrm{erfc}(x)` for :math:`x \ge 0`, relative error below :math:`4\cdot10^{-7}` in float32.

    Example:
        >>> import torch
        >>> erfcx(torch.tensor([0.0, 100.0]))
        tensor([1.0000, 0.0056])
    """
    small = x.clamp(max=_FRACTION_FROM)
    large = x.clamp(min=_FRACTION_FROM)
    fraction = large
    for level in range(_FRACTION_LEVELS, 0, -1):
        fraction = large + 0.5 * level / fraction
    return choose(x < _FRACTION_FROM, torch.exp(small * small) * torch.erfc(small), 1 / (math.sqrt(math.pi) * fraction))
