"""Normalisations: linear maps once their statistics are given, and the statistics are those of the means.

Every function here shifts and scales by a mean and a standard deviation that are computed from the input's means. The
variance is scaled by the square of what the mean is scaled by; that the statistics are themselves random, since they are
computed from random entries, is neglected. A statistic over n entries varies by a part of order 1/n, so this is right
for many entries and small variances; each docstring says what it costs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.precision import widened


def batch_norm(
    mean: Tensor,
    var: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    r"""Moments of batch normalisation; exact in evaluation.

    .. math:: E = \gamma\frac{\mu - m}{\sqrt{s + \epsilon}} + \beta, \qquad V = \frac{\gamma^2}{s + \epsilon}\,v

    In evaluation m and s are the running statistics. In training they are mean and (biased) variance of the means over
    the batch; the running statistics are updated from them, once. In the scale of V the statistic s is a constant: no
    gradient flows through it. Through the means the gradient is torch's own.

    Args:
        mean, var: the input's moments, [batch, channels, ...].
        running_mean, running_var, weight, bias, training, momentum, eps: as in ``torch.nn.functional.batch_norm``.

    Example:
        >>> import torch
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> batch_norm(torch.ones(1, 1), torch.ones(1, 1), zero, 4 * one, 3 * one, eps=0.0)
        (tensor([[1.5000]]), tensor([[2.2500]]))
    """
    if training or running_var is None:
        _check_batch(mean, eps)
        normal, _, inverse_std = torch.native_batch_norm(
            mean, weight, bias, running_mean, running_var, True, momentum, eps
        )
    else:
        normal = F.batch_norm(mean, running_mean, running_var, weight, bias, False, momentum, eps)
        inverse_std = torch.rsqrt(running_var + eps)
    scale = inverse_std.to(var.dtype)
    if weight is not None:
        scale = scale * widened(weight)
    return normal, var * _per_channel(scale.square(), var)


def _check_batch(mean: Tensor, eps: float) -> None:
    if mean.numel() == mean.shape[1]:
        raise ValueError(
            f"batch_norm: expected more than 1 value per channel in training, got shape {tuple(mean.shape)}"
        )
    if eps <= 0:
        raise ValueError(f"batch_norm: eps={eps} must be > 0 in training")


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1 for _ in like.shape[2:]))
