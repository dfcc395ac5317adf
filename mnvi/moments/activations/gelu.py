"""The error function and the GELU: exact moments, stable for every mean and variance."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments.activations.tabulated import tabulated
from mnvi.moments.lean import lean
from mnvi.moments.normal import FAR, choose, density, tail
from mnvi.moments.quadrature import column, gauss_legendre

_NODES, _WEIGHTS = zip(*gauss_legendre(7), strict=True)


@lean
def normal_cdf(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\Phi(Z)`.

    With :math:`h = \mu/\sqrt{1 + \sigma^2}`,

    .. math:: E = \Phi(h), \qquad
        V = \frac1\pi \int_a^1 \frac{e^{-h^2 (1 + x^2)/2}}{1 + x^2}\,dx, \quad a = (1 + 2\sigma^2)^{-1/2}.

    The mean is exact; seven Gauss–Legendre nodes give the integral (a difference of two of Owen's T functions), with
    all terms positive. Relative to :math:`\min(\sigma^2, 1)` the error is below :math:`10^{-9}`, in float32
    :math:`3\cdot10^{-7}`.

    Example:
        >>> import torch
        >>> normal_cdf(torch.zeros(1), torch.ones(1))  # uniform: 1/2 and 1/12
        (tensor([0.5000]), tensor([0.0833]))
    """
    h = mean * (1 + var).rsqrt()
    return tail(-h), _cdf_variance(h, var)


@lean
def erf(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\mathrm{erf}(Z) = 2\Phi(\sqrt2 Z) - 1`; see :func:`normal_cdf`.

    Example:
        >>> import torch
        >>> erf(torch.zeros(1), torch.tensor([0.5]))
        (tensor([0.]), tensor([0.3333]))
    """
    h = mean * (2 / (1 + 2 * var)).sqrt()
    return torch.erf(math.sqrt(0.5) * h), 4 * _cdf_variance(h, 2 * var)


@tabulated(F.gelu)
@lean
def gelu(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z\,\Phi(Z)`.

    For :math:`Y` with mean :math:`m = -|\mu|`, and :math:`s^2 = 1 + \sigma^2`, :math:`b^2 = 1 + 2\sigma^2`,
    :math:`P = \Phi(m/s)`, :math:`D = \varphi(m/s)/s`, :math:`Q = \Phi(m/(sb))`,
    :math:`G = e^{-m^2/b^2}/(2\pi b)`:

    .. math::
        E &= mP + \sigma^2 D, \\
        V &= (m^2 + \sigma^2)\,V[\Phi(Y)] + \sigma^2\bigl(P^2 - 2mPD - \sigma^2 D^2
             + 2mDQ\,(1 + s^{-2}) + 2\sigma^2 G s^{-2}\bigr).

    Since :math:`f(z) = z + f(-z)`, for positive means :math:`V = \sigma^2 (1 - 2(P + mDs^{-2})) + V[f(Y)]`. The mean is
    exact, the variance up to the quadrature in :func:`normal_cdf`: relative to :math:`\sigma` and :math:`\sigma^2` the
    errors are below :math:`2\cdot10^{-9}`, in float32 :math:`2\cdot10^{-7}`.

    Example:
        >>> import torch
        >>> gelu(torch.zeros(1), torch.ones(1))
        (tensor([0.2821]), tensor([0.3456]))
    """
    m = -mean.abs()
    s2, b2 = 1 + var, 1 + 2 * var
    inverse_s, inverse_b = s2.rsqrt(), b2.rsqrt()
    h = m * inverse_s
    p = tail(-h)
    d = density(h) * inverse_s
    q = tail(-h * inverse_b)
    g = torch.exp((-m.square() / b2).clamp(min=-0.5 * FAR**2)) * inverse_b / (2 * math.pi)
    slope = p + m * d / s2
    rest = p * p - 2 * m * d * (p - q * (1 + 1 / s2)) - var * d * d + 2 * var * g / s2
    variance = (m.square() + var) * _cdf_variance(h, var) + var * rest
    variance = choose(mean > 0, var * (1 - 2 * slope) + variance, variance)
    return mean.clamp(min=0) + m * p + var * d, variance.clamp(min=0)


def _cdf_variance(h: Tensor, var: Tensor) -> Tensor:
    root = (1 + 2 * var).sqrt()
    length = 2 * var / (root * (root + 1))  # 1 - a
    exponent = (-0.5 * h.square()).clamp(min=-0.5 * FAR**2)
    square = (1 - column(_NODES, h) * length).square() + 1  # 1 + x²
    return length / math.pi * (column(_WEIGHTS, h) * torch.exp(exponent * square) / square).sum(0)
