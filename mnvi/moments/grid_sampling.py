"""Values read at the points of a grid: each is a weighted sum of neighbours, and the variance takes squared weights."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

Taps = list[tuple[Tensor, Tensor]]  # position and weight of each neighbour along one axis
_CUBIC = -0.75  # torch's parameter of the cubic


def grid_sample(
    mean: Tensor,
    var: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Moments of ``torch.nn.functional.grid_sample`` at known points; exact for independent entries.

    .. math:: E = \sum_i w_i\mu_i, \qquad V = \sum_i w_i^2 v_i

    The neighbours are four or eight (``bilinear``), sixteen (``bicubic``) or one (``nearest``). At a border,
    ``bicubic`` with the padding ``border`` or ``reflection`` reads entries twice; these copies count as independent.

    Args:
        mean, var: the input's moments, [batch, channels, height, width] or [batch, channels, depth, height, width].
        grid, mode, padding_mode, align_corners: as in torch.

    Example:
        >>> import torch
        >>> centre = torch.zeros(1, 1, 1, 2)
        >>> grid_sample(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), centre, align_corners=False)
        (tensor([[[[1.]]]]), tensor([[[[0.2500]]]]))
    """
    expectation = F.grid_sample(mean, grid.to(mean.dtype), mode, padding_mode, align_corners)
    points, corners = grid.to(var.dtype), bool(align_corners)
    if mode == "nearest":
        return expectation, F.grid_sample(var, points, mode, padding_mode, align_corners)
    sizes = var.shape[2:]
    axes = []
    for axis, size in enumerate(sizes):
        at = points[..., -1 - axis]  # the grid names the last axis first
        place = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
        axes.append(
            _cubic(place, size, padding_mode, corners)
            if mode == "bicubic"
            else _linear(_inside(place, size, padding_mode, corners))
        )
    flat, variance = var.flatten(2), torch.zeros_like(expectation, dtype=var.dtype)
    for taps in product(*axes):
        index, weight = torch.zeros_like(points[..., 0], dtype=torch.long), torch.ones_like(points[..., 0])
        for (place, share), size in zip(taps, sizes, strict=True):
            weight = weight * share.square() * ((place >= 0) & (place < size))
            index = index * size + place.clamp(0, size - 1).long()
        read = flat.gather(2, index.flatten(1)[:, None].expand(-1, flat.shape[1], -1)).view(expectation.shape)
        variance = variance + weight[:, None] * read
    return expectation, variance


def _linear(place: Tensor) -> Taps:
    low = place.detach().floor()
    share = place - low
    return [(low, 1 - share), (low + 1, share)]


def _cubic(place: Tensor, size: int, padding_mode: str, corners: bool) -> Taps:
    low = place.detach().floor()
    share = place - low
    taps = []
    for offset in (-1, 0, 1, 2):
        away = (share - offset).abs()
        near = ((_CUBIC + 2) * away - (_CUBIC + 3)) * away * away + 1
        far = ((away - 5) * away + 8) * away * _CUBIC - 4 * _CUBIC
        taps.append((_inside(low + offset, size, padding_mode, corners), near if offset in (0, 1) else far))
    return taps


def _inside(place: Tensor, size: int, padding_mode: str, corners: bool) -> Tensor:
    """Positions moved into the input by the padding mode; ``zeros`` leaves them outside."""
    if padding_mode == "zeros":
        return place
    if padding_mode == "reflection":
        low, span = (0.0, size - 1) if corners else (-0.5, size)
        if span == 0:
            return torch.zeros_like(place)
        away = (place - low).abs()
        turns = (away.detach() / span).floor()
        rest = away - turns * span
        place = low + torch.where(turns % 2 == 0, rest, span - rest)
    return place.clamp(0, size - 1)
