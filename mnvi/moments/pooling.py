"""Pooling: the largest entry of a window, or its average."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments import winners
from mnvi.moments._torch import is_fused
from mnvi.moments.activations.relu import relu
from mnvi.moments.maximum import maximum
from mnvi.moments.memory_order import has_channels_last
from mnvi.moments.normal import Deviation
from mnvi.moments.products import outer
from mnvi.moments.recomputation import is_recomputed

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
_MOST_FUSED_PLACES = 9  # places in a window that compiled code compares one by one
_AVERAGE: dict[int, Callable] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_ADAPTIVE_AVERAGE: dict[int, Callable] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}


def max_pool(mean: Tensor, var: Tensor, dims: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    r"""The entry with the largest mean in each window, :math:`E = \mu_{i^*}, V = v_{i^*}`, and its index :math:`i^*`.

    This is the paper's rule. It is exact where one entry is surely the largest, and biased downwards where several
    compete: the maximum of four equal standard normals has mean 1.03 and variance 0.49, not 0 and 1.

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
    if is_fused() and (windows := _whole_windows(mean, dims, *args, **kwargs)) is not None:
        return *_largest_of([(mean[window], var[window]) for window in windows]), indices
    return largest, _picked(var, indices, dims), indices


def relu_max_pool(
    mean: Tensor, var: Tensor, floor: float, deviation: Deviation | None, dims: int, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor] | None:
    """:func:`max_pool` of a ReLU, written so that the compiler makes one pass of both; None if it cannot.

    Args:
        mean, var: the moments before the ReLU.
        floor, deviation: as in :func:`mnvi.moments.activations.relu.relu`.
        dims, args, kwargs: as in :func:`max_pool`.

    Example:
        >>> import torch
        >>> relu_max_pool(torch.tensor([[-1.0, 3.0]]), torch.zeros(1, 2), 0.0, None, 1, 2)
        (tensor([[3.]]), tensor([[0.]]))
    """
    windows = _whole_windows(mean, dims, *args, **kwargs)
    if windows is None:
        return None
    kernel = _tiling(mean, dims, *args, **kwargs)
    if kernel is not None and is_recomputed(mean, var):
        return _relu_of_winners(mean, var, floor, kernel)
    parts = [None if deviation is None else Deviation(*(part[window] for part in deviation)) for window in windows]
    return _largest_of([relu(mean[w], var[w], floor, part) for w, part in zip(windows, parts, strict=True)])


def _relu_of_winners(mean: Tensor, var: Tensor, floor: float, kernel: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """For a backward pass only the winners count: it needs their places and their moments before the ReLU."""
    moved = mean.dim() == len(kernel) + 2 and has_channels_last(mean)
    if moved:
        mean, var = mean.movedim(1, -1), var.movedim(1, -1)
    first = 1 if moved else mean.dim() - len(kernel)
    with torch.no_grad():
        entries = zip(*(winners.tiles(values, kernel, first) for values in (mean, var)), strict=True)
        place = winners.winning_places([relu(m, v, floor)[0] for m, v in entries])
    winner_mean, winner_var = (winners.winners(values, place, kernel, first) for values in (mean, var))
    positions = [size // side for size, side in zip(mean.shape[first:], kernel, strict=False)]
    moments = (moment.unflatten(first, positions) for moment in relu(winner_mean, winner_var, floor))
    expectation, variance = (moment.movedim(-1, 1) if moved else moment for moment in moments)
    return expectation, variance


def _tiling(
    mean: Tensor,
    dims: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[int, ...] | None:
    """The sides of windows that cover each entry exactly once; None for other windows."""
    kernel = _per_dim(kernel_size, dims)
    steps = _per_dim(stride, dims) if stride else kernel
    whole = all(size % side == 0 for size, side in zip(mean.shape[-dims:], kernel, strict=True))
    unbroken = set(_per_dim(dilation, dims)) == {1} and not any(_per_dim(padding, dims))
    return kernel if whole and unbroken and steps == kernel else None


def _largest_of(entries: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The entry with the largest mean, the first one of equals; NaN counts as largest, as in torch's pooling."""
    mean, var = entries[0]
    for other_mean, other_var in entries[1:]:
        larger = (other_mean > mean) | other_mean.isnan()
        mean, var = torch.where(larger, other_mean, mean), torch.where(larger, other_var, var)
    return mean, var


def _whole_windows(
    mean: Tensor,
    dims: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> list[tuple[Any, ...]] | None:
    """For each place in a window, the slices of the input there; None for large windows and those with padding."""
    kernel, margins, gaps = (_per_dim(value, dims) for value in (kernel_size, padding, dilation))
    steps = _per_dim(stride, dims) if stride or stride == 0 else kernel
    if math.prod(kernel) > _MOST_FUSED_PLACES or any(margins) or ceil_mode:
        return None
    windows = []
    for place in itertools.product(*(range(k) for k in kernel)):
        sides = zip(place, kernel, gaps, steps, mean.shape[-dims:], strict=True)
        windows.append((..., *(slice(i * gap, size - gap * (k - 1 - i), step) for i, k, gap, step, size in sides)))
    return windows


def adaptive_max_pool(mean: Tensor, var: Tensor, dims: int, output_size: Any) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`max_pool` over the windows of ``torch.nn.functional.adaptive_max_pool2d`` and its variants.

    Example:
        >>> import torch
        >>> adaptive_max_pool(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[0.1, 0.3, 0.2]]), 1, 1)[:2]
        (tensor([[3.]]), tensor([[0.3000]]))
    """
    largest, indices = _ADAPTIVE_WITH_INDICES[dims](mean, output_size)
    return largest, _picked(var, indices, dims), indices


def clark_max_pool(
    mean: Tensor,
    var: Tensor,
    dims: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of the maximum over each window, matched pair by pair with :func:`mnvi.moments.maximum.maximum`.

    The entries of a window meet in a tree: first with second, third with fourth and so on in row-major order, then the
    winners in the same way. Each match is exact for two Gaussians, which only the first round has. Padding takes no
    part. For four entries with unit variances and means drawn from a standard normal, the mean is off by at most 0.004
    and the standard deviation by 4 %; for nine, by 0.02 and 9 %. The rule of the largest mean (:func:`max_pool`) is off
    by up to 0.9 and 41 %, and 1.1 and 58 %.

    Args:
        mean, var, dims: as in :func:`max_pool`.
        kernel_size, stride, padding, dilation, ceil_mode: as in ``torch.nn.functional.max_pool2d``.

    Returns:
        mean, variance, and the index of the entry with the largest mean.

    Example:
        >>> import torch
        >>> clark_max_pool(torch.zeros(1, 2), torch.ones(1, 2), 1, 2)[:2]
        (tensor([[0.5642]]), tensor([[0.6817]]))
    """
    largest, indices = _WITH_INDICES[dims](mean, kernel_size, stride, padding, dilation, ceil_mode)
    kernel, margins, gaps = (_per_dim(value, dims) for value in (kernel_size, padding, dilation))
    steps = _per_dim(stride, dims) if stride or stride == 0 else kernel
    windows = []
    for axis in range(dims):
        first = torch.arange(largest.shape[axis - dims], device=mean.device) * steps[axis] - margins[axis]
        place = first[:, None] + gaps[axis] * torch.arange(kernel[axis], device=mean.device)  # [outputs, window]
        windows.append((place, (place >= 0) & (place < mean.shape[axis - dims])))
    partial = any(margins) or ceil_mode
    return *_tree_maximum(mean, var, windows, partial), indices


def clark_adaptive_max_pool(mean: Tensor, var: Tensor, dims: int, output_size: Any) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`clark_max_pool` over the windows of ``torch.nn.functional.adaptive_max_pool2d`` and its variants.

    Example:
        >>> import torch
        >>> clark_adaptive_max_pool(torch.zeros(1, 2), torch.ones(1, 2), 1, 1)[:2]
        (tensor([[0.5642]]), tensor([[0.6817]]))
    """
    largest, indices = _ADAPTIVE_WITH_INDICES[dims](mean, output_size)
    windows = []
    for axis in range(-dims, 0):
        length, outputs = mean.shape[axis], largest.shape[axis]
        start, end = _adaptive_windows(length, outputs, mean)
        longest = length // outputs + (2 if length % outputs else 0)  # an upper bound; the mask does the rest
        place = start[:, None] + torch.arange(longest, device=mean.device)
        windows.append((place, place < end[:, None]))
    return *_tree_maximum(mean, var, windows, True), indices


def _tree_maximum(
    mean: Tensor, var: Tensor, windows: list[tuple[Tensor, Tensor]], partial: bool
) -> tuple[Tensor, Tensor]:
    """``windows`` holds, for each pooled axis, positions [outputs, window] and whether each is inside the input."""
    dims = len(windows)
    entries: list[tuple[Tensor, Tensor, Tensor | None]] = [(mean, var, None)]
    for axis, (place, inside) in enumerate(windows):
        dim = mean.dim() - dims + axis
        place = place.clamp(0, mean.shape[dim] - 1)
        picked: list[tuple[Tensor, Tensor, Tensor | None]] = []
        for m, v, valid in entries:
            for k in range(place.shape[1]):
                here = inside[:, k].view(-1, *(1 for _ in range(dims - axis - 1)))
                both = here if valid is None else valid & here
                picked.append((m.index_select(dim, place[:, k]), v.index_select(dim, place[:, k]), both))
        entries = picked
    while len(entries) > 1:
        pairs = [_larger(a, b, partial) for a, b in zip(entries[::2], entries[1::2], strict=False)]
        entries = pairs + (entries[-1:] if len(entries) % 2 else [])
    return entries[0][0], entries[0][1]


def _larger(a: tuple[Tensor, Tensor, Any], b: tuple[Tensor, Tensor, Any], partial: bool) -> tuple[Tensor, Tensor, Any]:
    moments = maximum(*a[:2], *b[:2])
    if not partial:
        return *moments, None
    in_a, in_b = a[2], b[2]
    m, v = (torch.where(in_a & in_b, both, torch.where(in_a, x, y)) for both, x, y in zip(moments, a, b, strict=False))
    return m, v, in_a | in_b


def _picked(values: Tensor, indices: Tensor, dims: int) -> Tensor:
    return values.flatten(-dims).gather(-1, indices.flatten(-dims)).view(indices.shape)


def largest(mean: Tensor, var: Tensor, dim: int, clark: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The largest entry along a dimension and its index: :func:`max_pool` over one window, or :func:`clark_max_pool`.

    Args:
        mean, var: the input's moments.
        dim: the dimension to reduce.
        clark: match the moments of the maximum pair by pair, instead of picking the entry with the largest mean.

    Example:
        >>> import torch
        >>> largest(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.1, 0.3, 0.2]), 0)
        (tensor(3.), tensor(0.3000), tensor(1))
        >>> largest(torch.zeros(2), torch.ones(2), 0, clark=True)[:2]
        (tensor(0.5642), tensor(0.6817))
    """
    index = mean.argmax(dim, keepdim=True)
    if not clark:
        return mean.gather(dim, index).squeeze(dim), var.gather(dim, index).squeeze(dim), index.squeeze(dim)
    entries = list(zip(mean.unbind(dim), var.unbind(dim), strict=True))
    while len(entries) > 1:
        pairs = [maximum(*a, *b) for a, b in zip(entries[::2], entries[1::2], strict=False)]
        entries = pairs + (entries[-1:] if len(entries) % 2 else [])
    return *entries[0], index.squeeze(dim)


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

    The divisor varies if windows reach beyond the input and padding does not count, or if ``ceil_mode`` lets windows
    reach beyond the padding too.

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
    return average, spread / outer(sizes)


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
        start, end = _adaptive_windows(length, outputs, var)
        sizes.append(end - start)
    return average, spread / outer(sizes)


def _adaptive_windows(length: int, outputs: int, like: Tensor) -> tuple[Tensor, Tensor]:
    i = torch.arange(outputs, device=like.device)
    return i * length // outputs, ((i + 1) * length + outputs - 1) // outputs


def _window_sizes(
    length: int, outputs: int, kernel: int, stride: int, padding: int, count_padding: bool, like: Tensor
) -> Tensor:
    start = torch.arange(outputs, device=like.device) * stride - padding
    end = (start + kernel).clamp(max=length + padding)
    return end - start if count_padding else end.clamp(max=length) - start.clamp(min=0)


def _per_dim(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * dims if len(value) == 1 else tuple(value)
