r"""Expected values under a Gaussian that likelihoods need and no activation has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mnvi.moments._torch import is_traced
from mnvi.moments.normal import bounded_sqrt, choose, density
from mnvi.moments.quadrature import column, gauss_hermite

_WIDE = 1.0  # σ from which the fixed grid is used
_STEP = 0.8
_LAST = 24  # in steps; the entropy falls like z·exp(-z)
_NODES, _WEIGHTS = zip(*gauss_hermite(14), strict=True)

_LOG_POINTS = 32
_LEFT, _RIGHT = 9.0, 3.0  # e^-18 and exp(-e^3) are below float32's precision


def recomputed(function: Callable, *tensors: Tensor) -> Any:
    """``function(*tensors)``; in eager mode the backward pass evaluates it again instead of keeping what it computed.

    Args:
        function: any function of tensors that gives the same result when called twice.
        tensors: its arguments.

    Example:
        >>> import torch
        >>> x = torch.ones(2, requires_grad=True)
        >>> recomputed(lambda t: t.exp().log(), x).sum().backward()
        >>> x.grad
        tensor([1., 1.])
    """
    if is_traced() or not torch.is_grad_enabled():
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False, determinism_check="none")


def binary_entropy(mean: Tensor, var: Tensor) -> Tensor:
    r"""Expected entropy of a coin whose logit is Gaussian, in nats.

    .. math:: E[H(p(Z))], \qquad H(p(z)) = \log(1 + e^z) - z\,p(z), \quad p \text{ the sigmoid}

    Fourteen Gauss–Hermite nodes below :math:`\sigma = 1`. Above, the trapezoidal rule on a fixed grid: the entropy
    vanishes on both sides. The error is below :math:`10^{-6}`.

    Args:
        mean: :math:`\mu`.
        var: :math:`\sigma^2`.

    Example:
        >>> import torch
        >>> binary_entropy(torch.zeros(2), torch.tensor([0.0, 1.0]))
        tensor([0.6931, 0.5994])
    """
    return recomputed(_binary_entropy, mean.to(var.dtype), var)


def _binary_entropy(mean: Tensor, var: Tensor) -> Tensor:
    sigma = bounded_sqrt(var, _WIDE)
    narrow = (column(_WEIGHTS, mean) * coin_entropy(mean + column(_NODES, mean) * sigma)).sum(0)
    grid = _STEP * torch.arange(-_LAST, _LAST + 1, dtype=torch.float64, device="cpu")
    heights = coin_entropy(grid) * _STEP
    wide = bounded_sqrt(var).clamp(min=_WIDE)
    mass = density((column(grid.tolist(), mean) - mean) / wide) / wide
    return choose(var < _WIDE**2, narrow, (column(heights.tolist(), mean) * mass).sum(0))


def coin_entropy(logit: Tensor) -> Tensor:
    """Entropy of a coin with this logit; computed on the side where nothing cancels.

    Example:
        >>> import torch
        >>> coin_entropy(torch.tensor([0.0, 2.5]))
        tensor([0.6931, 0.2685])
    """
    small = -logit.abs()
    return F.softplus(small) - small * torch.sigmoid(small)


def log1p_square(square: Tensor, var: Tensor) -> Tensor:
    r"""Expected logarithm in the density of Student's t: :math:`E[\log(1 + Z^2)]`,
    :math:`Z \sim \mathcal N(\delta, u)`.

    From :math:`\log x = \int_0^\infty (e^{-\tau} - e^{-\tau x})\,d\tau/\tau` and the closed form of
    :math:`E[e^{-\tau Z^2}]`, with :math:`M = \delta^2 + u` and :math:`\tau = e^s`,

    .. math::
        E = \log(1 + M) + \int \Bigl(e^{-\tau M} - \frac{e^{-\tau\delta^2/(1 + 2\tau u)}}{\sqrt{1 + 2\tau u}}\Bigr)
            e^{-\tau}\,ds .

    The integrand is smooth and vanishes on both sides for every ratio of :math:`\delta^2`, :math:`u` and 1, so that the
    trapezoidal rule with 32 points converges fast, where Gauss–Hermite nodes for :math:`Z` miss the cusp that the
    logarithm has for large :math:`u`. The error is below :math:`10^{-6}` for :math:`M \le 100`, below
    :math:`5\cdot10^{-4}` for :math:`M \le 10^{9}`, and zero for :math:`u = 0`.

    Args:
        square: :math:`\delta^2 \ge 0`.
        var: :math:`u \ge 0`, same shape.

    Example:
        >>> import torch
        >>> log1p_square(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]))
        tensor([0.6931, 0.8488])
    """
    return recomputed(_log1p_square, square, var)


def _log1p_square(square: Tensor, var: Tensor) -> Tensor:
    whole = square + var
    start = -_LEFT - torch.log1p(whole.detach())
    step = (_RIGHT - start) / (_LOG_POINTS - 1)
    tau = torch.exp(start + column(range(_LOG_POINTS), whole) * step)
    growth = 2 * tau * var
    kept = tau * square / (1 + growth) + 0.5 * torch.log1p(growth)  # -log E[e^{-τZ²}], never larger than τM
    difference = torch.exp(-tau - kept) * torch.expm1(kept - tau * whole)
    return torch.log1p(whole) + step * difference.sum(0)
