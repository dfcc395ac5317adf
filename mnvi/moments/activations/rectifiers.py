r"""Smooth rectifiers: zero far below, the identity far above, and a bend of width one in between.

In eager float32 tables answer (:mod:`mnvi.moments.activations.tabulated`, with errors of their own); the formulas here
make the tables and answer otherwise.

Below :math:`\sigma = 1` Gauss–Hermite nodes use increments :math:`f(\mu + \delta) - f(\mu)` that lose no digits. Above,
with the ReLU smoothed by unit noise, :math:`R(z) = z\Phi(z) + \varphi(z)`, the differences :math:`h_1 = f - R` and
:math:`h_2 = f^2 - zR` are smooth and vanish on both sides, so that the trapezoidal rule integrates them against a
Gaussian with an error that falls exponentially in the number of nodes:

.. math::
    E &= E_R + \sum_j h_1(z_j)\,\mathcal N(z_j; \mu, \sigma^2)\,\Delta, \\
    V &= V_R - \Phi(\mu/\sqrt{1 + \sigma^2}) + \sum_j (h_2 - 2E_R h_1)(z_j)\,\mathcal N(z_j; \mu, \sigma^2)\,\Delta
         - (E - E_R)^2

where :math:`E_R, V_R` are the moments of a ReLU for variance :math:`\sigma^2 + 1`. Only a table of :math:`h_1` and
:math:`h_2` depends on the function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments.activations.tabulated import tabulated
from mnvi.moments.lean import lean
from mnvi.moments.normal import bounded_sqrt, choose, density, distance, proportional, tail, tail_and_excess
from mnvi.moments.quadrature import column, gauss_hermite

_WIDE = 1.0  # σ from which the table is used
_STEP = 0.8
_FIRST, _LAST = -15, 17  # in steps; h₁ and h₂ fall like z·exp(-|z|)
_NODES, _WEIGHTS = zip(*gauss_hermite(14), strict=True)

_GELU_SCALE = 1.5957691216057308  # 2√(2/π)
_GELU_CUBIC = 0.044715

Table = tuple[list[float], list[float], list[float]]


def _table(function: Callable[[Tensor], Tensor]) -> Table:
    """z, h₁(z)·Δ and h₂(z)·Δ at the nodes."""
    z = _STEP * torch.arange(_FIRST, _LAST + 1, dtype=torch.float64, device="cpu")
    value = function(z)
    smooth = z * tail(-z) + density(z)
    return z.tolist(), ((value - smooth) * _STEP).tolist(), ((value.square() - z * smooth) * _STEP).tolist()


def _moments(
    mean: Tensor, var: Tensor, narrow_sigma: Tensor, centre: Tensor, increments: Tensor, table: Table
) -> tuple[Tensor, Tensor]:
    """Both methods and the choice between them; ``increments`` has one entry per node along the first dimension."""
    weights = column(_WEIGHTS, mean)
    first = (weights * increments).sum(0)
    second = (weights * increments.square()).sum(0)

    sigma = var.clamp(min=_WIDE**2).sqrt()
    smoothed = var + 1
    root = smoothed.sqrt()
    a = distance(mean, root)
    q, t = tail_and_excess(a)
    rectified = mean.clamp(min=0) + root * t
    cdf = choose(mean >= 0, 1 - q, q)
    wide_var = smoothed * (cdf - t * (t + a)) - cdf
    z, one, two = (column(values, mean) for values in table)
    mass = density((z - mean) / sigma) / sigma
    once, twice = (one * mass).sum(0), (two * mass).sum(0)
    wide_var = wide_var + twice - once * (2 * rectified + once)

    narrow = var < _WIDE**2
    narrow_var = proportional(second - first.square(), var, narrow_sigma)
    expectation = choose(narrow, centre + first, rectified + once)
    return expectation, choose(narrow, narrow_var, wide_var).clamp(min=0)


def _narrow_sigma(var: Tensor) -> Tensor:
    """σ, bounded because exp(δ) must stay finite even where the result is unused."""
    return bounded_sqrt(var, _WIDE)


_SOFTPLUS = _table(F.softplus)


@tabulated(F.softplus)
@lean
def softplus(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\log(1 + e^Z)`, with increments :math:`\log(1 + p\,(e^\delta - 1))`, :math:`p` the sigmoid of
    the mean. Relative to :math:`\sigma` and :math:`\sigma^2` the error is below :math:`10^{-6}`.

    Example:
        >>> import torch
        >>> softplus(torch.zeros(1), torch.ones(1))
        (tensor([0.8061]), tensor([0.2715]))
    """
    sigma, p = _narrow_sigma(var), torch.sigmoid(mean)
    increments = torch.log1p(p * torch.expm1(column(_NODES, mean) * sigma))
    return _moments(mean, var, sigma, F.softplus(mean), increments, _SOFTPLUS)


_MISH = _table(F.mish)
_MISH_SATURATED = 15.0  # tanh(softplus) is one to 13 digits


@tabulated(F.mish)
@lean
def mish(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z\,T(Z)`, :math:`T = \tanh(\log(1 + e^Z)) = 1 - 2/(n + 2)` with :math:`n = e^Z(e^Z + 2)`.

    The increment is :math:`\delta\,T(\mu + \delta) + \mu\,\Delta T`,
    :math:`\Delta T = 2\Delta n/((n + 2)(n + \Delta n + 2))`. Relative to :math:`\sigma` and :math:`\sigma^2` the error
    is below :math:`2\cdot10^{-5}`.

    Example:
        >>> import torch
        >>> mish(torch.zeros(1), torch.ones(1))
        (tensor([0.2404]), tensor([0.3945]))
    """
    sigma = _narrow_sigma(var)
    grown = torch.exp(mean.clamp(max=_MISH_SATURATED))
    n = grown * (grown + 2)
    gate = n / (n + 2)

    delta = column(_NODES, mean) * sigma
    e = torch.expm1(delta)
    change = grown * e * (grown * (e + 2) + 2)
    opened = 2 * change / ((n + 2) * (n + change + 2))
    increments = delta * (gate + opened) + mean * opened
    return _moments(mean, var, sigma, mean * gate, increments, _MISH)


_GELU_TANH = _table(partial(F.gelu, approximate="tanh"))
_LARGEST_EXPONENT = 60.0


@tabulated(partial(F.gelu, approximate="tanh"))
@lean
def gelu_tanh(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of GELU's tanh approximation, :math:`Z\,p(\alpha(Z + \beta Z^3))` with the sigmoid :math:`p`.

    Relative to :math:`\sigma` and :math:`\sigma^2` the error is below :math:`2\cdot10^{-5}`.

    Example:
        >>> import torch
        >>> gelu_tanh(torch.zeros(1), torch.ones(1))
        (tensor([0.2820]), tensor([0.3456]))
    """
    sigma = _narrow_sigma(var)
    square = mean.square()
    argument = _GELU_SCALE * mean * (1 + _GELU_CUBIC * square)
    p, not_p = torch.sigmoid(argument), torch.sigmoid(-argument)

    delta = column(_NODES, mean) * sigma
    growth = delta * (1 + _GELU_CUBIC * (3 * square + delta * (3 * mean + delta)))
    exponent = (_GELU_SCALE * growth).clamp(-_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    opened = p * not_p * torch.expm1(exponent) / (not_p + p * torch.exp(exponent))
    increments = delta * (p + opened) + mean * opened
    return _moments(mean, var, sigma, mean * p, increments, _GELU_TANH)
