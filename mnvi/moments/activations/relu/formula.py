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
from mnvi.moments.normal import FAR, INV_SQRT_2PI, SMALLEST_VARIANCE, SQRT_HALF, Deviation

_FAR_IN_FLOAT64 = 37.0
_MILLS_SCALE = 0.31
_MILLS = (
    0.12365568852889751, 0.12407779197649796, 0.10766962840852763, 0.110422763245398,
    -0.015457156082221007, 0.1556341470276683, -0.14191535957228607, 0.03591257906117108,
)  # fmt: skip


def moments(mean: Tensor, var: Tensor, deviation: Deviation | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E, V, Φ(d) and φ(d)/σ; with the deviation given, compiled code takes no root."""
    wide = mean.to(var.dtype)
    if is_fused() and var.dtype == torch.float32 and var.device.type == "cpu":
        return _fused(mean, wide, var, deviation)
    sigma = var.clamp(min=SMALLEST_VARIANCE).sqrt()
    # Nothing changes beyond, and numbers that underflow slow down everything that reads them, here and in later layers.
    size = (wide / sigma).abs().clamp(max=far(var.dtype))
    density = INV_SQRT_2PI * torch.exp(-0.5 * size * size)
    tail = 0.5 * torch.erfc(size * SQRT_HALF)
    excess = torch.addcmul(density, size, tail, value=-1)  # up to there it lies further above zero than it is off
    cdf = torch.where(wide >= 0, 1 - tail, tail)
    expectation = torch.addcmul(wide.clamp(min=0), sigma, excess)
    variance = var * torch.addcmul(cdf, excess, excess + size, value=-1).clamp(min=0)
    slope = torch.where(var > SMALLEST_VARIANCE, density / sigma, 0.0)  # no gradient where there is no noise
    return _as_given(expectation, mean), variance, cdf, slope


def far(dtype: torch.dtype) -> float:
    """Standard deviations from the bend beyond which the moments have reached their limits."""
    return _FAR_IN_FLOAT64 if dtype == torch.float64 else FAR


def _fused(
    mean: Tensor, wide: Tensor, var: Tensor, deviation: Deviation | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""The same with few instructions: at most one root and one division.

    :math:`a` stops at 9, where every result has reached its limit. Up to there :math:`t` lies further above zero than
    it is off, so it needs no bound.
    """
    if deviation is None:  # one division for both: a = |μ|/σ and Mills' 1/(1 + ca) = σ/(σ + c|μ|)
        bounded = var.clamp(min=SMALLEST_VARIANCE)
        sigma = bounded.sqrt()
        near = torch.minimum(wide.abs(), FAR * sigma)  # σ(σ + c|μ|) cannot overflow before σ² does
        reach = sigma + _MILLS_SCALE * near
        both = 1 / (sigma * reach)
        inverse, part = reach * both, bounded * both
        size = near * inverse
    else:
        _, sigma, inverse = deviation
        size = torch.clamp(wide.abs() * inverse, max=FAR)
        part = 1 / (1 + _MILLS_SCALE * size)
    bell = torch.exp(-0.5 * size * size)
    ratio = _mills_ratio(part)  # Φ(-a) / exp(-a²/2)
    tail = bell * ratio
    excess = bell * (INV_SQRT_2PI - size * ratio)
    cdf = torch.where(wide >= 0, 1 - tail, tail)
    expectation = wide.clamp(min=0) + sigma * excess
    variance = var * (cdf - excess * (excess + size)).clamp(min=0)
    slope = torch.where(var > SMALLEST_VARIANCE, INV_SQRT_2PI * bell * inverse, 0.0)
    return _as_given(expectation, mean), variance, cdf, slope


def _as_given(expectation: Tensor, mean: Tensor) -> Tensor:
    """Compiled by torch 2.11, a conversion that changes nothing loses the gradient."""
    return expectation if expectation.dtype == mean.dtype else expectation.to(mean.dtype)


def gradients(g_mean: Tensor, g_var: Tensor, expectation: Tensor, cdf: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """∂E/∂μ = Φ, ∂E/∂v = φ/2σ, ∂V/∂μ = 2E(1−Φ), ∂V/∂v = Φ − Eφ/σ."""
    through = g_var * expectation
    to_mean = torch.addcmul(g_mean * cdf, through, 1 - cdf, value=2)
    return to_mean, torch.addcmul(g_var * cdf, slope, torch.sub(g_mean, through, alpha=2), value=0.5)


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
    r""":math:`\Phi(-a)\,e^{a^2/2} = t\,P(t)` for :math:`0 \le a \le 16`, given :math:`t = 1/(1 + ca)`.

    The compiler has no vector form of erfc on a CPU, where erfc takes over 40 % of the formula's time. There float32
    uses this polynomial, fitted to a relative error of 2e-7. Pairs of terms, and pairs of pairs, do not wait for each
    other.
    """
    pairs = [low + high * t for low, high in zip(_MILLS[::2], _MILLS[1::2], strict=True)]
    square = t * t
    fours = [low + high * square for low, high in zip(pairs[::2], pairs[1::2], strict=True)]
    return (fours[0] + fours[1] * (square * square)) * t
