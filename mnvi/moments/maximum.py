"""The larger of two Gaussians."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
# Lower bound on the sum of the two variances; far enough from underflow to be squared and divided by.
_SMALLEST_VARIANCE = 1e-30
# φ and the tail are exactly 0 from here on in either precision; the bound keeps ∞·0 out.
_FARTHEST = 50.0


def maximum(mean_a: Tensor, var_a: Tensor, mean_b: Tensor, var_b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\max(A, B)` for independent Gaussians (Clark 1961); exact.

    With :math:`a^2 = v_a + v_b`, :math:`\delta = (\mu_a - \mu_b)/a` and :math:`t = \varphi(\delta) -
    |\delta|\,\Phi(-|\delta|)`, the excess over the larger mean in units of a:

    .. math:: E = \max(\mu_a, \mu_b) + a\,t, \qquad
              V = v_a\Phi(\delta) + v_b\Phi(-\delta) - a^2\,t\,(|\delta| + t)

    Clark's own form subtracts squares of means; this one does not, so it holds for means of any size: against float64
    the float32 result is off by 1e-6 of :math:`a` and :math:`a^2` at most.

    Example:
        >>> import torch
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> maximum(zero, one, zero, one)  # 1/√π and 1 − 1/π
        (tensor([0.5642]), tensor([0.6817]))
    """
    scale = (var_a + var_b).clamp(min=_SMALLEST_VARIANCE).sqrt()
    delta = ((mean_a - mean_b) / scale).clamp(-_FARTHEST, _FARTHEST)
    distance = delta.abs()
    density = (-0.5 * delta.square()).exp() * _INV_SQRT_2PI
    excess = (density - distance * 0.5 * torch.erfc(distance * _SQRT_HALF)).clamp(min=0)
    a_wins, b_wins = 0.5 * torch.erfc(-delta * _SQRT_HALF), 0.5 * torch.erfc(delta * _SQRT_HALF)
    expectation = torch.maximum(mean_a, mean_b) + scale * excess
    variance = var_a * a_wins + var_b * b_wins - (var_a + var_b) * excess * (distance + excess)
    return expectation.to(torch.promote_types(mean_a.dtype, mean_b.dtype)), variance.clamp(min=0)
