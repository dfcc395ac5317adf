"""Covariances through linear layers and ReLU, and their Cholesky factor for sampling."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments._torch import values_can_be_read
from mnvi.moments.activations.relu import relu as relu_moments
from mnvi.moments.precision import full_precision, widened

_SMALLEST_VARIANCE = 1e-30  # keeps means over standard deviations finite in float32
_LARGEST_RATIO = 30.0  # beyond it Φ is 0 or 1 and φ is 0 in every dtype
_LARGEST_CORRELATION = 1 - 1e-6  # the ReLU formula's slope is infinite at 1; its value moves by less than 1e-6
_SERIES_BELOW = 0.25  # below this |ρ| a series replaces asin(ρ) − ρ
_SERIES = [math.comb(2 * n, n) / (4**n * (2 * n + 1)) for n in range(1, 12)]
_JITTERS = (1e-4, 1e-2, 1e-1)


def linear(
    mean: Tensor,
    spread: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    weight_var: Tensor | None = None,
    bias_var: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    r"""Linear layer with independent weights; exact.

    .. math:: \mu' = M\mu + b, \qquad C' = M C M^\top + \mathrm{diag}\big(S(\mathrm{diag}\,C + \mu\circ\mu) + s_b\big)

    Args:
        mean: :math:`\mu`, [..., n].
        spread: C, [..., n, n]; only its diagonal [..., n] if it is diagonal; None for a known input.
        weight, bias: M and b.
        weight_var: S, in the shape of ``weight``; None for known weights.
        bias_var: :math:`s_b`; None for known biases.

    Returns:
        The mean, and the spread in the same three forms.

    Example:
        >>> import torch
        >>> linear(torch.ones(1, 2), torch.eye(2)[None], torch.ones(2, 2), weight_var=torch.full((2, 2), 0.5))[1]
        tensor([[[4., 2.],
                 [2., 4.]]])
    """
    out = F.linear(mean, weight, bias)
    with full_precision(mean):
        full = spread is not None and spread.dim() > mean.dim()
        own = None
        if weight_var is not None:
            second_moment = widened(mean).square()
            if spread is not None:
                second_moment = second_moment + (spread.diagonal(dim1=-2, dim2=-1) if full else spread)
            own = F.linear(second_moment, widened(weight_var), None if bias_var is None else widened(bias_var))
        if spread is None:
            return out, own
        wide = widened(weight)
        through = (wide @ spread if full else wide * spread.unsqueeze(-2)) @ wide.T
        return out, through if own is None else through + torch.diag_embed(own)


def relu(mean: Tensor, cov: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    r"""DVI's approximation, with the exact variances on the diagonal.

    With :math:`m = \mu/\sigma`, correlation :math:`\rho`, :math:`r = 1 + \sqrt{1-\rho^2}`,
    :math:`a = \arcsin\rho - \rho/r`:

    .. math::
        C'_{ij} = C_{ij}\Big(\Phi(m_i)\Phi(m_j) + \frac{a}{2\pi}
        \exp\Big(-\frac{\rho(m_i^2 + m_j^2)}{2ar} + \frac{\arcsin\rho - \rho}{a\rho}\,m_i m_j\Big)\Big)

    Exact to third order in :math:`\rho` and at :math:`m = 0`. For unit variances the error is at most 0.006 while
    :math:`|\rho| \le 0.95`, and 0.015 where :math:`|\rho| \to 1`.

    Args:
        mean: :math:`\mu`, [..., n].
        cov: C, [..., n, n].
        floor: lower bound put on the variances.

    Example:
        >>> import torch
        >>> relu(torch.zeros(1, 2), torch.tensor([[[1.0, 0.5], [0.5, 1.0]]]), 0.0)[1]
        tensor([[[0.3408, 0.1453],
                 [0.1453, 0.3408]]])
    """
    before = cov.diagonal(dim1=-2, dim2=-1)
    out, var = relu_moments(mean, before, floor)
    with full_precision(mean):
        scale = before.clamp(min=max(floor, _SMALLEST_VARIANCE)).rsqrt()
        ratio = (widened(mean) * scale).clamp(-_LARGEST_RATIO, _LARGEST_RATIO)
        rho = cov * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        shrink = _relu_shrink(rho.clamp(-_LARGEST_CORRELATION, _LARGEST_CORRELATION), ratio)
        return out, _with_diagonal(cov * shrink, var)


def first_order_relu(mean: Tensor, spread: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    r"""The first-order rule: :math:`\max(\mu, 0)`, and covariances only between entries with positive means.

    .. math:: C'_{ij} = [\mu_i > 0]\,[\mu_j > 0]\,C_{ij}

    Args:
        mean: :math:`\mu`, [..., n].
        spread: C, [..., n, n], or only its diagonal [..., n] if it is diagonal.
        floor: lower bound put on the variances.

    Example:
        >>> import torch
        >>> first_order_relu(torch.tensor([-1.0, 1.0]), torch.ones(2, 2), 0.0)
        (tensor([0., 1.]), tensor([[0., 0.],
                [0., 1.]]))
    """
    slope = (mean > 0).to(spread.dtype)
    if spread.dim() == mean.dim():
        return torch.relu(mean), slope * spread.clamp(min=floor)
    diagonal = spread.diagonal(dim1=-2, dim2=-1).clamp(min=floor)
    return torch.relu(mean), _with_diagonal(spread, diagonal) * slope.unsqueeze(-1) * slope.unsqueeze(-2)


def _relu_shrink(rho: Tensor, ratio: Tensor) -> Tensor:
    """The bracket of :func:`relu`. With h = (asin ρ − ρ)/ρ³ and q = a/ρ = 1 + ρ²h − 1/r every quotient stays finite."""
    m_i, m_j = ratio.unsqueeze(-1), ratio.unsqueeze(-2)
    cdf = torch.special.ndtr(ratio)
    h = _asin_remainder(rho)
    r = 1 + ((1 - rho) * (1 + rho)).sqrt()
    q = 1 + rho.square() * h - 1 / r
    exponent = (rho * h * m_i * m_j - (m_i.square() + m_j.square()) / (2 * r)) / q
    return cdf.unsqueeze(-1) * cdf.unsqueeze(-2) + rho * q * exponent.exp() / (2 * math.pi)


def _asin_remainder(rho: Tensor) -> Tensor:
    """(asin ρ − ρ)/ρ³, 1/6 at 0; a series where the difference would cancel."""
    square = rho.square()
    series = torch.full_like(rho, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        series = series * square + coefficient
    small = rho.abs() < _SERIES_BELOW
    safe = torch.where(small, 0.5, rho)
    return torch.where(small, series, (safe.asin() - safe) / safe**3)


def correlation_factor(cov: Tensor) -> Tensor:
    """Cholesky factor of the correlations, shrunk towards independence where they are not positive definite."""
    scale = cov.diagonal(dim1=-2, dim2=-1).clamp(min=_SMALLEST_VARIANCE).rsqrt()
    rho = _with_diagonal(cov * scale.unsqueeze(-1) * scale.unsqueeze(-2), torch.ones_like(scale))
    size = rho.shape[-1]
    eye = torch.eye(size, dtype=rho.dtype, device=rho.device)
    with torch.no_grad():
        jitter = torch.full_like(rho[..., :1, :1], 16 * size * torch.finfo(rho.dtype).eps)
        for larger in (*_JITTERS, size):
            failed = torch.linalg.cholesky_ex(rho.detach() + jitter * eye).info > 0
            if values_can_be_read(failed) and not failed.any():
                break
            jitter = torch.where(failed[..., None, None], larger, jitter)
    return torch.linalg.cholesky_ex((rho + jitter * eye) / (1 + jitter)).L


def _with_diagonal(matrix: Tensor, diagonal: Tensor) -> Tensor:
    eye = torch.eye(matrix.shape[-1], dtype=torch.bool, device=matrix.device)
    return torch.where(eye, diagonal.unsqueeze(-1), matrix)
