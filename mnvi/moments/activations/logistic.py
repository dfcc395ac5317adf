r"""Sigmoid and its relatives, accurate from :math:`\sigma = 0` to a sigmoid that looks like a step.

In eager float32 tables answer (:mod:`mnvi.moments.activations.tabulated`, with errors of their own); the formulas here
make the tables and answer otherwise.

Below :math:`\sigma = 1` ten Gauss–Hermite nodes use the exact increment of a sigmoid
:math:`p(\mu + \delta) - p(\mu) = p\,\bar p\,e/(1 + p\,e)`, :math:`e = \mathrm{expm1}(\delta)`, :math:`\bar p = 1 - p`,
so that no digits cancel. Above, a mixture of five centred Gaussians approximates the logistic density,
:math:`p(z) \approx \sum_k w_k \Phi(z/\tau_k)`, fitted to the density after smoothing by :math:`\sigma = 1`; then with
:math:`s_k^2 = \tau_k^2 + \sigma^2`

.. math:: P = E[p] = \sum_k w_k \Phi(\mu/s_k), \qquad D = E[p'] = \sum_k w_k\, \varphi(\mu/s_k)/s_k,

and since :math:`p^2 = p - p'`, second moments follow.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments.activations.tabulated import tabulated
from mnvi.moments.lean import lean
from mnvi.moments.normal import bounded_sqrt, choose, density, proportional, tail
from mnvi.moments.quadrature import column, gauss_hermite

_WIDE = 1.0  # σ from which the mixture is used
_MIXTURE_WEIGHTS = (0.11353864, 0.41370125, 0.35626111, 0.10871126, 0.00778774)
_MIXTURE_VARIANCES = (0.98013940, 2.01517245, 3.97060689, 7.54482066, 14.13993164)
_NODES, _WEIGHTS = zip(*((node, weight) for node, weight in gauss_hermite(10) if node > 0), strict=True)  # ±node


@tabulated(torch.sigmoid, degree=0)
@lean
def sigmoid(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`1/(1 + e^{-Z})`: quadrature for :math:`\sigma < 1`, :math:`P` and
    :math:`V = P(1 - P) - D` above.

    Relative to :math:`\min(\sigma/4, 1/2)` and its square, the largest possible values, the mean is off by less than
    :math:`10^{-6}` and the variance by :math:`3\cdot10^{-5}`.

    Example:
        >>> import torch
        >>> sigmoid(torch.zeros(1), torch.tensor([1.0]))
        (tensor([0.5000]), tensor([0.0434]))
    """
    shift, narrow_var = _narrow(mean, var)
    wide, wide_var = _wide(mean, var)
    narrow = var < _WIDE**2
    expectation = choose(narrow, torch.sigmoid(mean) + shift, wide)
    return expectation, choose(narrow, narrow_var, wide_var).clamp(min=0)


@tabulated(torch.tanh, degree=0)
@lean
def tanh(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\tanh Z = 2p(2Z) - 1`, from those of the sigmoid.

    Relative to :math:`\min(\sigma, 1)` and its square the error is below :math:`2\cdot10^{-5}`.

    Example:
        >>> import torch
        >>> tanh(torch.ones(1), torch.ones(1))
        (tensor([0.5504]), tensor([0.2475]))
    """
    shift, narrow_var = _narrow(2 * mean, 4 * var)
    wide, wide_var = _wide(2 * mean, 4 * var)
    narrow = 4 * var < _WIDE**2
    expectation = choose(narrow, torch.tanh(mean) + 2 * shift, 2 * wide - 1)
    return expectation, 4 * choose(narrow, narrow_var, wide_var).clamp(min=0)


@lean
def tanhshrink(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z - \tanh Z`.

    Relative to :math:`\sigma` and :math:`\sigma^2` the error is below :math:`2\cdot10^{-5}`.

    Quadrature where the input is narrow, otherwise :math:`V = \sigma^2 (1 - 2E[\tanh']) + V[\tanh]`.

    Example:
        >>> import torch
        >>> tanhshrink(torch.ones(1), torch.ones(1))
        (tensor([0.4496]), tensor([0.3483]))
    """
    double, quadruple = 2 * mean, 4 * var
    sigma, p, not_p = _narrow_inputs(double, quadruple)
    delta, up, down = _increments(sigma, p, not_p)
    first, narrow_var = _pairs(0.5 * delta - 2 * up, -0.5 * delta - 2 * down)
    narrow_var = proportional(narrow_var, quadruple, sigma)
    wide, wide_var = _wide(double, quadruple)
    _, slope, _, _ = _mixture(double, quadruple)
    narrow = quadruple < _WIDE**2
    expectation = choose(narrow, (mean - torch.tanh(mean)) + first, mean - (2 * wide - 1))
    variance = choose(narrow, narrow_var, var * (1 - 8 * slope) + 4 * wide_var)
    return expectation, variance.clamp(min=0)


@tabulated(F.silu)
@lean
def silu(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z\,p(Z)`, the sigmoid-weighted value (swish).

    Quadrature below :math:`\sigma = 1`. Above, with :math:`Y` of mean :math:`m = -|\mu|` and :math:`D', D''` the
    derivatives of :math:`D` by :math:`m`,

    .. math:: E[f(Y)] = mP + \sigma^2 D, \qquad
        E[f(Y)^2] = (m^2 + \sigma^2)(P - D) + 2m\sigma^2 (D - D') + \sigma^4 (D' - D''),

    and since :math:`f(z) = z + f(-z)`, for positive means
    :math:`V = \sigma^2 (1 - 2E[f'(Y)]) + V[f(Y)]`, :math:`E[f'(Y)] = P + mD + \sigma^2 D'`. Relative to :math:`\sigma`
    and :math:`\sigma^2` the error is below :math:`10^{-5}`.

    Example:
        >>> import torch
        >>> silu(torch.zeros(1), torch.ones(1))
        (tensor([0.2066]), tensor([0.3131]))
    """
    sigma, p, not_p = _narrow_inputs(mean, var)
    delta, up, down = _increments(sigma, p, not_p)
    first, narrow_var = _pairs(delta * (p + up) + mean * up, mean * down - delta * (p + down))
    narrow_mean, narrow_var = mean * p + first, proportional(narrow_var, var, sigma)

    m = -mean.abs()
    chance, peak, tilt, bend = _mixture(m, var)
    wide_mean = m * chance + var * peak
    square = m.square() * (chance - peak) + var * (chance - peak + 2 * m * (peak - tilt) + var * (tilt - bend))
    wide_var = square - wide_mean.square()
    slope = chance + m * peak + var * tilt
    wide_var = choose(mean > 0, var * (1 - 2 * slope) + wide_var, wide_var)

    narrow = var < _WIDE**2
    expectation = choose(narrow, narrow_mean, mean.clamp(min=0) + wide_mean)
    return expectation, choose(narrow, narrow_var, wide_var).clamp(min=0)


def _narrow_inputs(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """σ, bounded because exp(δ) must stay finite even where the result is unused; p; 1 - p."""
    return bounded_sqrt(var, _WIDE), torch.sigmoid(mean), torch.sigmoid(-mean)


def _increments(sigma: Tensor, p: Tensor, not_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """δ, p(μ + δ) - p(μ) and p(μ - δ) - p(μ), for each pair of nodes along a new first dimension."""
    delta = column(_NODES, sigma) * sigma
    e = torch.expm1(delta)
    rise = p * not_p * e
    return delta, rise / (1 + p * e), -rise / (1 + not_p * e)


def _pairs(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """First moment and variance of values at ±δ."""
    weights = column(_WEIGHTS, up[0])
    first = (weights * (up + down)).sum(0)
    return first, (weights * (up.square() + down.square())).sum(0) - first.square()


def _narrow(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """E - p(μ) and V."""
    sigma, p, not_p = _narrow_inputs(mean, var)
    _, up, down = _increments(sigma, p, not_p)
    first, variance = _pairs(up, down)
    return first, proportional(variance, var, sigma)


def _wide(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """E and V; the variance is computed on the side where the sigmoid is small."""
    chance, peak, _, _ = _mixture(-mean.abs(), var)
    return choose(mean > 0, 1 - chance, chance), chance * (1 - chance) - peak


def _mixture(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P, D, D' and D''."""
    inverse = (var + column(_MIXTURE_VARIANCES, var)).rsqrt()
    ratio = mean * inverse
    weights = column(_MIXTURE_WEIGHTS, var)
    height = weights * inverse * density(ratio)
    lower = height * inverse.square()
    tilt = -mean * lower.sum(0)
    bend = (lower * (ratio.square() - 1)).sum(0)
    return (weights * tail(-ratio)).sum(0), height.sum(0), tilt, bend
