"""Exponential, sine, cosine and whole powers: exact moments without cancellation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnvi.moments.lean import lean


@lean
def exp(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`e^Z`, the log-normal: :math:`E = e^{\mu + \sigma^2/2}`, :math:`V = E^2 (e^{\sigma^2} - 1)`.

    Example:
        >>> import torch
        >>> exp(torch.zeros(1), torch.ones(1))
        (tensor([1.6487]), tensor([4.6708]))
    """
    expectation = torch.exp(mean + 0.5 * var)
    return expectation, expectation.square() * torch.expm1(var)


@lean
def expm1(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`e^Z - 1`: the mean is that of :func:`exp` minus one, the variance is the same.

    Example:
        >>> import torch
        >>> expm1(torch.zeros(1), torch.ones(1))
        (tensor([0.6487]), tensor([4.6708]))
    """
    return torch.expm1(mean + 0.5 * var), torch.exp(2 * mean + var) * torch.expm1(var)


@lean
def sin(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\sin Z`; with :math:`c = e^{-\sigma^2}`,

    .. math:: E = \sqrt c\,\sin\mu, \qquad V = \tfrac12 (1 - c)\,(1 - c + 2c\cos^2\mu).

    Example:
        >>> import torch
        >>> sin(torch.zeros(1), torch.ones(1))
        (tensor([0.]), tensor([0.4323]))
    """
    return _wave(torch.sin(mean), torch.cos(mean), var)


@lean
def cos(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\cos Z`; with :math:`c = e^{-\sigma^2}`,

    .. math:: E = \sqrt c\,\cos\mu, \qquad V = \tfrac12 (1 - c)\,(1 - c + 2c\sin^2\mu).

    Example:
        >>> import torch
        >>> cos(torch.zeros(1), torch.ones(1))
        (tensor([0.6065]), tensor([0.1998]))
    """
    return _wave(torch.cos(mean), torch.sin(mean), var)


def _wave(value: Tensor, slope: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    lost = -torch.expm1(-var)
    return torch.exp(-0.5 * var) * value, 0.5 * lost * (lost + 2 * torch.exp(-var) * slope.square())


@lean
def power(mean: Tensor, var: Tensor, *, exponent: int) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z^n` for a whole number :math:`n \ge 1`; exact.

    With :math:`m_k = E[X^k]` of a standard Gaussian,

    .. math::
        E = \sum_k \binom nk m_k\,\mu^{n-k}\sigma^k, \qquad
        V = \sum_{i,j \ge 1} \binom ni \binom nj (m_{i+j} - m_i m_j)\,\mu^{2n-i-j}\sigma^{i+j};

    every term of the variance is positive.

    Example:
        >>> import torch
        >>> power(torch.ones(1), torch.ones(1), exponent=3)
        (tensor([4.]), tensor([60.]))
    """
    square = mean.square()
    expectation = _polynomial([math.comb(exponent, k) * _moment(k) for k in range(0, exponent + 1, 2)], square, var)
    if exponent % 2:
        expectation = expectation * mean
    coefficients = [0.0] * (exponent + 1)
    for i in range(1, exponent + 1):
        for j in range(2 - i % 2, exponent + 1, 2):
            binomials = math.comb(exponent, i) * math.comb(exponent, j)
            coefficients[(i + j) // 2] += binomials * (_moment(i + j) - _moment(i) * _moment(j))
    return expectation, var * _polynomial(coefficients[1:], square, var)


def _moment(k: int) -> float:
    return 0.0 if k % 2 else float(math.prod(range(1, k, 2)))


def _polynomial(coefficients: list[float], x: Tensor, y: Tensor) -> Tensor:
    """The homogeneous polynomial Σ c_k x^(n-k) y^k."""
    total = torch.full_like(x, coefficients[0])
    scale = torch.ones_like(y)
    for coefficient in coefficients[1:]:
        scale = scale * y
        total = total * x + coefficient * scale
    return total
