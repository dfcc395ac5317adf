r"""The moments of a ReLU and their gradients, written as formulas that torch can compile.

With :math:`d = \mu/\sigma`, :math:`a = |d|`, :math:`q = \Phi(-a)` and :math:`t = \varphi(a) - a\,q` (the expectation of
:math:`(X - a)_+` for a standard Gaussian ``X``):

.. math:: E = \max(\mu, 0) + \sigma t, \qquad V = \sigma^2\,(\Phi(d) - t\,(t + a)).

No term is a difference of large numbers for ``d >= -1``; for smaller ``d`` the relative error grows like
:math:`d^2 \epsilon` while the values themselves vanish like :math:`\varphi(d)`.

``SMALLEST_VARIANCE`` only keeps a ratio finite. The floor under the variance is an option, ``relu_floor`` in
``mnvi/rules/options.py``, and is applied before these formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnvi.moments._torch import is_fused
from mnvi.moments.normal import INV_SQRT_2PI, SMALLEST_VARIANCE, SQRT_HALF

_FAR = 16.0  # standard deviations; φ(d) is zero in float32 from 14.5 on
_MILLS_SCALE = 0.25455844
_MILLS = (
    0.25455845, 0.254557781, 0.238059556, 0.205438968, 0.154063934,
    0.133497762, -0.0358887716, 0.179754899, -0.177930891, 0.0472024958,
)  # fmt: skip


def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E, V, Φ(d) and φ(d)/σ."""
    wide = mean.to(var.dtype)
    bounded = var.clamp(min=SMALLEST_VARIANCE)
    sigma = bounded.sqrt()
    if is_fused() and var.dtype == torch.float32 and var.device.type == "cpu":
        # one division for both: d = μ/σ and Mills' 1/(1 + c|d|) = σ/(σ + c|μ|)
        limit = _FAR * sigma  # nothing changes beyond, and σ(σ + c|μ|) cannot overflow before σ² does
        near = torch.minimum(torch.maximum(wide, -limit), limit)
        reach = sigma + _MILLS_SCALE * near.abs()
        inverse = 1 / (sigma * reach)
        ratio = near * (reach * inverse)
        size = ratio.abs()
        density = INV_SQRT_2PI * torch.exp(-0.5 * ratio * ratio)
        tail = density * _mills_ratio(bounded * inverse)
    else:
        ratio = wide / sigma
        size = ratio.abs()
        density = INV_SQRT_2PI * torch.exp(-0.5 * ratio * ratio)
        tail = 0.5 * torch.erfc(size * SQRT_HALF)
    excess = (density - size * tail).clamp(min=0)
    cdf = torch.where(ratio >= 0, 1 - tail, tail)
    expectation = wide.clamp(min=0) + sigma * excess
    variance = var * (cdf - excess * (excess + size)).clamp(min=0)
    slope = torch.where(var > SMALLEST_VARIANCE, density / sigma, 0.0)  # no gradient where there is no noise
    if expectation.dtype != mean.dtype:  # compiled by torch 2.11, a conversion that changes nothing loses the gradient
        expectation = expectation.to(mean.dtype)
    return expectation, variance, cdf, slope


def gradients(g_mean: Tensor, g_var: Tensor, expectation: Tensor, cdf: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """∂E/∂μ = Φ, ∂E/∂v = φ/2σ, ∂V/∂μ = 2E(1−Φ), ∂V/∂v = Φ − Eφ/σ."""
    through = g_var * expectation
    return g_mean * cdf + 2 * through * (1 - cdf), g_var * cdf + slope * (0.5 * g_mean - through)


def gradients_of_ingredients(
    g_cdf: Tensor | None, g_slope: Tensor | None, cdf: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Gradients of Φ(d) and s = φ(d)/σ, from themselves: :math:`d = \Phi^{-1}(\Phi)`, :math:`1/\sigma = s/\varphi(d)`.

    ∂Φ/∂μ = s, ∂Φ/∂v = −sd/2σ, ∂s/∂μ = −sd/σ, ∂s/∂v = s(d²−1)/2σ². Where Φ rounds to one, s is too small to matter.
    """
    noisy = (slope > 0) & (cdf > 0) & (cdf < 1)
    ratio = torch.special.ndtri(torch.where(noisy, cdf, 0.5))
    inverse = torch.where(noisy, slope, 0.0) / (INV_SQRT_2PI * torch.exp(-0.5 * ratio * ratio))
    to_cdf = torch.zeros_like(cdf) if g_cdf is None else g_cdf
    to_slope = torch.zeros_like(slope) if g_slope is None else g_slope * inverse
    to_mean = slope * (to_cdf - ratio * to_slope)
    return to_mean, 0.5 * slope * inverse * ((ratio * ratio - 1) * to_slope - ratio * to_cdf)


def _mills_ratio(t: Tensor) -> Tensor:
    r""":math:`\Phi(-a)/\varphi(a) = t\,P(t)` for :math:`a \ge 0`, given :math:`t = 1/(1 + ca)`.

    The compiler has no vector form of erfc on a CPU, where erfc takes over 40 % of the formula's time. There float32
    uses this polynomial, fitted to a relative error of 4e-8; in float32 arithmetic 4e-7.
    """
    ratio = torch.full_like(t, _MILLS[-1])
    for coefficient in _MILLS[-2::-1]:
        ratio = ratio * t + coefficient
    return ratio * t
