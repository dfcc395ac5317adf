"""Pooling: the largest entry of a window, or its average."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_WITH_INDICES: dict[int, Callable] = {
    1: F.max_pool1d_with_indices,
    2: F.max_pool2d_with_indices,
    3: F.max_pool3d_with_indices,
}
_ADAPTIVE_WITH_INDICES: dict[int, Callable] = {
    1: F.adaptive_max_pool1d_with_indices,
    2: F.adaptive_max_pool2d_with_indices,
    3: F.adaptive_max_pool3d_with_indices,
}
_AVERAGE: dict[int, Callable] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_ADAPTIVE_AVERAGE: dict[int, Callable] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}


def max_pool(mean: Tensor, var: Tensor, dims: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    r"""The entry with the largest mean in each window, :math:`E = \mu_{i^*}, V = v_{i^*}`, and its index :math:`i^*`.

    This is the paper's rule. It is exact where one entry is surely the largest, and biased downwards where several
    compete: of four equal standard normals the maximum has mean 1.03 and variance 0.49, not 0 and 1.

    Args:
        mean, var: the input's moments, [batch, channels, ...] or [channels, ...].
        dims: the number of pooled dimensions.
        args, kwargs: kernel size, stride, padding, dilation and ceil mode as in ``torch.nn.functional.max_pool2d``.

    Example:
        >>> import torch
        >>> max_pool(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), torch.tensor([[0.1, 0.3, 0.2, 0.0]]), 1, 2)[:2]
        (tensor([[3., 2.]]), tensor([[0.3000, 0.2000]]))
    """
    largest, indices = _WITH_INDICES[dims](mean, *args, **kwargs)
    return largest, _picked(var, indices, dims), indices


def adaptive_max_pool(mean: Tensor, var: Tensor, dims: int, output_size: Any) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`max_pool` over the windows of ``torch.nn.functional.adaptive_max_pool2d`` and its kin.

    Example:
        >>> import torch
        >>> adaptive_max_pool(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[0.1, 0.3, 0.2]]), 1, 1)[:2]
        (tensor([[3.]]), tensor([[0.3000]]))
    """
    largest, indices = _ADAPTIVE_WITH_INDICES[dims](mean, output_size)
    return largest, _picked(var, indices, dims), indices


def _picked(values: Tensor, indices: Tensor, dims: int) -> Tensor:
    return values.flatten(-dims).gather(-1, indices.flatten(-dims)).view(indices.shape)


def avg_pool(
    mean: Tensor,
    var: Tensor,
    dims: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Moments of the average over a window W with divisor n; exact for independent entries.

    .. math:: E = \frac1n\sum_{i\in W}\mu_i, \qquad V = \frac{1}{n^2}\sum_{i\in W} v_i

    The divisor differs from window to window where the window leaves the input and padding is not counted, or where
    ``ceil_mode`` lets it leave the padding as well.

    Args:
        mean, var: the input's moments, [batch, channels, ...] or [channels, ...].
        dims: the number of pooled dimensions.
        kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override: as in
            ``torch.nn.functional.avg_pool2d``.

    Example:
        >>> import torch
        >>> avg_pool(torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 2.0]]), 1, 2)
        (tensor([[2.]]), tensor([[1.]]))
    """
    if stride is None or (not isinstance(stride, int) and len(stride) == 0):
        stride = kernel_size
    options: list[Any] = [kernel_size, stride, padding, ceil_mode, count_include_pad]
    if dims > 1:
        options.append(divisor_override)
    average, spread = (_AVERAGE[dims](t, *options) for t in (mean, var))
    if divisor_override is not None:
        return average, spread / divisor_override
    kernel, steps, margins = (_per_dim(value, dims) for value in (kernel_size, stride, padding))
    if not ceil_mode and (count_include_pad or not any(margins)):
        size = 1
        for k in kernel:
            size *= k
        return average, spread / size
    sizes = [
        _window_sizes(*axis, count_include_pad, var)
        for axis in zip(var.shape[-dims:], spread.shape[-dims:], kernel, steps, margins, strict=True)
    ]
    return average, spread / _outer(sizes)


def adaptive_avg_pool(mean: Tensor, var: Tensor, dims: int, output_size: Any) -> tuple[Tensor, Tensor]:
    r"""Moments of the adaptive average; exact for independent entries, also where windows differ in size.

    Output i of O along an axis of length L is the average of the entries from :math:`\lfloor iL/O\rfloor` up to
    :math:`\lceil (i+1)L/O\rceil`.

    Example:
        >>> import torch
        >>> adaptive_avg_pool(torch.zeros(1, 3), torch.ones(1, 3), 1, 2)  # two windows of two, sharing an entry
        (tensor([[0., 0.]]), tensor([[0.5000, 0.5000]]))
    """
    average, spread = (_ADAPTIVE_AVERAGE[dims](t, output_size) for t in (mean, var))
    sizes = []
    for length, outputs in zip(var.shape[-dims:], spread.shape[-dims:], strict=True):
        i = torch.arange(outputs, device=var.device)
        sizes.append(((i + 1) * length + outputs - 1) // outputs - i * length // outputs)
    return average, spread / _outer(sizes)


def _window_sizes(
    length: int, outputs: int, kernel: int, stride: int, padding: int, count_padding: bool, like: Tensor
) -> Tensor:
    start = torch.arange(outputs, device=like.device) * stride - padding
    end = (start + kernel).clamp(max=length + padding)
    return end - start if count_padding else end.clamp(max=length) - start.clamp(min=0)


def _outer(sizes: list[Tensor]) -> Tensor:
    total = sizes[0]
    for size in sizes[1:]:
        total = total[..., None] * size
    return total


def _per_dim(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * dims if len(value) == 1 else tuple(value)
