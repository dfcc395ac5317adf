"""Interpolation: each output is a weighted sum of inputs, and the variance goes through the squared weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments.pooling import adaptive_avg_pool

# The mode that gives the weights along one axis; torch interpolates at least two axes by it.
_ONE_AXIS = {"linear": "bilinear", "bilinear": "bilinear", "trilinear": "bilinear", "bicubic": "bicubic"}


def interpolate(
    mean: Tensor,
    var: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""Moments of ``torch.nn.functional.interpolate``; exact for independent entries, in every mode.

    .. math:: E_o = \sum_i w_{oi}\mu_i, \qquad V_o = \sum_i w_{oi}^2 v_i

    The weights of the (bi-, tri-)linear and bicubic modes are products of weights along each axis, and so are their
    squares: one axis after the other, a matrix of squared weights multiplies the variance. ``nearest`` copies, ``area``
    is an adaptive average.

    Args:
        mean, var: the input's moments, [batch, channels, ...].
        size, scale_factor, mode, align_corners, recompute_scale_factor, antialias: as in torch.

    Example:
        >>> import torch
        >>> interpolate(torch.tensor([[[0.0, 1.0]]]), torch.ones(1, 1, 2), 3, mode="linear", align_corners=True)
        (tensor([[[0.0000, 0.5000, 1.0000]]]), tensor([[[1.0000, 0.5000, 1.0000]]]))
    """
    rest = (scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    expectation = F.interpolate(mean, size, *rest)
    if mode in ("nearest", "nearest-exact"):
        return expectation, F.interpolate(var, size, *rest)
    dims = var.dim() - 2
    if mode == "area":
        return expectation, adaptive_avg_pool(var, var, dims, expectation.shape[2:])[1]
    # Given a scale, torch derives positions from it, not from the rounded sizes, unless told to recompute it.
    scales: Sequence[float | None] = [None] * dims
    if scale_factor is not None and not recompute_scale_factor:
        scales = [scale_factor] * dims if isinstance(scale_factor, int | float) else scale_factor
    variance = var
    for axis, scale in zip(range(2, 2 + dims), scales, strict=True):
        weights = _weights(var, axis, expectation.shape[axis], scale, _ONE_AXIS[mode], align_corners, antialias)
        variance = torch.matmul(variance.movedim(axis, -1), weights.square()).movedim(-1, axis)
    return expectation, variance.clamp(min=0)


def _weights(
    like: Tensor, axis: int, outputs: int, scale: float | None, mode: str, align_corners: bool | None, antialias: bool
) -> Tensor:
    """torch's weights [inputs, outputs]: unit vectors interpolated, in two columns as torch misreads a single one."""
    units = torch.eye(like.shape[axis], dtype=like.dtype, device=like.device)[None, :, :, None].repeat(1, 1, 1, 2)
    sized = {"size": (outputs, 2)} if scale is None else {"scale_factor": (scale, 1.0)}
    found = F.interpolate(units, mode=mode, align_corners=align_corners, antialias=antialias, **sized)
    return found[0, :, :, 0]
