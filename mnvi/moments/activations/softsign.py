"""Softsign: quadrature on either side of zero, on a logarithmic scale."""

from __future__ import annotations

import torch
from torch import Tensor

from mnvi.moments.lean import lean
from mnvi.moments.normal import bounded_sqrt, choose, density, proportional
from mnvi.moments.quadrature import column, gauss_legendre

_NODES, _WEIGHTS = zip(*gauss_legendre(20), strict=True)
_REACH = 5.5  # standard deviations; 4e-8 of the mass lies beyond


@lean
def softsign(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z/(1 + |Z|)`.

    With :math:`|z| = e^u - 1` the function is :math:`\pm(1 - e^{-u})`; 20 Gauss–Legendre nodes in :math:`u` on the
    mean's side of zero and 20 on the other resolve it whether it is wide or narrow compared with :math:`\sigma`. Both
    moments are off by less than :math:`5\cdot10^{-6}`, relative to :math:`\min(\sigma, 1)` and its square.

    Example:
        >>> import torch
        >>> softsign(torch.ones(1), torch.ones(1))
        (tensor([0.3782]), tensor([0.1176]))
    """
    sigma = bounded_sqrt(var)
    size = mean.abs()
    base = 1 + size
    value = size / base
    reach = _REACH * sigma
    nodes, weights = column(_NODES, mean), column(_WEIGHTS, mean)

    lowest = torch.log1p(-torch.minimum(reach, size) / base)  # u - u(μ), on the mean's side
    length = torch.log1p(reach / base) - lowest
    grown = torch.expm1(lowest + nodes * length)
    near_mass = weights * (length * base / sigma) * (1 + grown) * density(base / sigma * grown)
    near = grown / (base * (1 + grown))

    length = torch.log1p((reach - size).clamp(min=0))
    beyond = torch.expm1(nodes * length)
    far_mass = weights * (length / sigma) * (1 + beyond) * density((beyond + size) / sigma)
    far = -(beyond / (1 + beyond) + value)

    first = (near_mass * near + far_mass * far).sum(0)
    second = (near_mass * near.square() + far_mass * far.square()).sum(0)
    expectation = value + first
    variance = proportional(second - first.square(), var, sigma)
    return choose(mean >= 0, expectation, -expectation), variance.clamp(min=0)
