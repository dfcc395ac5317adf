"""Dropout as a source of variance."""

from __future__ import annotations

import torch
from torch import Tensor

from mnvi.moments.precision import widened

# SELU saturates at minus this value, and torch's alpha dropout sets dropped entries to the same.
_SATURATION = 1.7580993408473766


def dropout(mean: Tensor, var: Tensor, p: float) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`mZ`, where m is 0 with probability p and :math:`1/(1-p)` otherwise; exact.

    From :math:`E[m] = 1` and :math:`E[m^2] = 1/(1-p)`:

    .. math:: E = \mu, \qquad V = \frac{v + p\mu^2}{1-p}

    When a whole channel shares one mask, as in ``dropout2d``, this is still each entry's mean and variance; the result
    does not record that the entries of a channel drop out together.

    Args:
        mean, var: the input's moments.
        p: the probability of zero; at 1 everything is dropped and both moments are 0.

    Example:
        >>> import torch
        >>> dropout(torch.full((1,), 2.0), torch.ones(1), 0.5)
        (tensor([2.]), tensor([6.]))
    """
    if p == 1:
        return mean * 0, var * 0
    return mean.clone(), (var + p * widened(mean).square()) / (1 - p)


def alpha_dropout(mean: Tensor, var: Tensor, p: float) -> tuple[Tensor, Tensor]:
    r"""Moments of alpha dropout, which sets entries to :math:`-\alpha' = -1.7581` and rescales; exact.

    With :math:`a = ((1 + p\alpha'^2)(1-p))^{-1/2}`:

    .. math:: E = a(1-p)\mu, \qquad V = a^2(1-p)\big(v + p(\mu + \alpha')^2\big)

    Example:
        >>> import torch
        >>> e, v = alpha_dropout(torch.zeros(1), torch.ones(1), 0.3)  # made to keep zero mean and unit variance
        >>> e.item(), round(v.item(), 4)
        (0.0, 1.0)
    """
    if p == 1:
        return mean * 0, var * 0
    scale = _rescaling(p)
    return mean * (scale * (1 - p)), scale**2 * (1 - p) * (var + p * (widened(mean) + _SATURATION).square())


def masked_alpha_dropout(mean: Tensor, var: Tensor, p: float, kept: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of alpha dropout for one known mask, :math:`a(Z + p\alpha')` where kept, a constant elsewhere; exact.

    Args:
        mean, var, p: as in :func:`alpha_dropout`.
        kept: where an entry is kept, broadcast against the input.

    Example:
        >>> import torch
        >>> masked_alpha_dropout(torch.zeros(2), torch.ones(2), 0.5, torch.tensor([True, False]))
        (tensor([ 0.7792, -0.7792]), tensor([0.7857, 0.0000]))
    """
    if p == 1:
        return mean * 0, var * 0
    scale = _rescaling(p)
    shifted = torch.where(kept, mean + p * _SATURATION, (p - 1) * _SATURATION)
    return scale * shifted, scale**2 * var * kept


def _rescaling(p: float) -> float:
    return ((1 + p * _SATURATION**2) * (1 - p)) ** -0.5
