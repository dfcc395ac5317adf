"""Convolutions with one output channel, written as the reduction that they are.

A weighted sum over the channels gives one map for each tap of the kernel; the maps, each shifted by its tap, add up to
the output. The first step is a matrix product and does nearly all the work. torch's convolutions are made for many
outputs: with one, their backward pass takes longer than with a hundred.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments._torch import is_compiling, is_fused
from mnvi.moments.affine import Affine
from mnvi.moments.memory_order import has_channels_last

MOST_FUSED_TAPS = 9
"""Kernels with more taps are a matrix product in compiled code too: that many sums no longer fit the registers."""


def one_channel(affine: Affine, x: Tensor, weight: Tensor) -> Tensor:
    """``affine(x, weight)`` for a weight with one output for each group.

    Args:
        affine: the linear operation.
        x: its input.
        weight: one output for each group.

    Example:
        >>> import torch
        >>> one_channel(Affine((1,), (0,), (1,), False, (0,)), torch.ones(1, 2, 4), torch.ones(1, 2, 3))
        tensor([[[6., 6.]]])
    """
    if affine.stride is None:
        return (x * weight[0]).sum(-1, keepdim=True) if is_fused() else F.linear(x, weight)
    if affine.transposed or affine.groups > 1 or (is_compiling() and not is_fused()):
        return affine(x, weight)
    if x.dim() == len(affine.stride) + 1:
        return one_channel(affine, x[None], weight)[0]
    if is_fused() and torch.is_grad_enabled():
        sums: Tensor = _FusedSums.apply(affine, x, weight)
        return stored(sums)
    return _one_channel(affine, x, weight)


def _one_channel(affine: Affine, x: Tensor, weight: Tensor) -> Tensor:
    assert affine.stride is not None
    if math.prod(weight.shape[2:]) == 1 and not any(affine.padding) and set(affine.stride) == {1}:
        return _reduced(x, weight.flatten()) if _is_reduced(weight) else _maps(x, weight)
    margins = _margins(affine)
    if _is_reduced(weight):  # separate tensors: the compiler cannot join the sums to what computes x through a cat
        taps = _taps_first(weight)
        maps = [F.pad(_reduced(x, taps[k]), margins) for k in range(len(taps))]
    else:
        maps = list(F.pad(_maps(x, weight), margins).split(1, 1))
    shifted = [taken[window] for taken, window in zip(maps, _windows(affine, x, weight), strict=True)]
    total = _total(shifted)
    return stored(total)


def separable(affine: Affine, x: Tensor, channels: Tensor, taps: Tensor) -> Tensor:
    """:func:`one_channel` for the weight ``channels * taps``: a sum over the channels, then one map through the taps.

    Args:
        affine: a convolution without groups, not transposed.
        x: its input.
        channels: a factor for each input channel, [1, in, 1...].
        taps: a factor for each tap, [1, 1, kernel...].

    Example:
        >>> import torch
        >>> conv = Affine((1,), (0,), (1,), False, (0,))
        >>> separable(conv, torch.ones(1, 2, 4), torch.ones(1, 2, 1), torch.ones(1, 1, 3))
        tensor([[[6., 6.]]])
    """
    assert affine.stride is not None
    if x.dim() == len(affine.stride) + 1:
        return separable(affine, x[None], channels, taps)[0]
    if not is_fused():
        return affine((x * channels).sum(1, keepdim=True) if is_compiling() else _maps(x, channels), taps)
    summed = F.pad(_reduced(x, channels.flatten()), _margins(affine))
    factors = taps.flatten()
    terms = [factors[k] * summed[window] for k, window in enumerate(_windows(affine, x, taps))]
    return stored(_total(terms))


def _total(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def stored(value: Tensor) -> Tensor:
    """The value; compiled code stores it instead of computing it again wherever it is used.

    Example:
        >>> import torch
        >>> stored(torch.ones(2))
        tensor([1., 1.])
    """
    if not is_fused():
        return value
    result: Tensor = _Stored.apply(value)
    return result


class _FusedSums(torch.autograd.Function):
    """:func:`one_channel` in compiled training, with a backward pass that makes one sweep over x.

    The gradient of the one output channel, padded, stays a small tensor; each tap sees a window of it. What autograd
    would derive lays every map out for all channels.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(affine: Affine, x: Tensor, weight: Tensor) -> Tensor:
        return _one_channel(affine, x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.affine, x, weight = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        affine: Affine = ctx.affine
        taps = _taps_first(weight)
        spread = _spread_back(affine, grad, x, weight)
        windows = [spread[window] for window in _mirrored_windows(affine, x, weight)]  # [batch, 1, positions...] each
        last = has_channels_last(x)
        if last:  # so that results have the layout of x
            x, windows = x.movedim(1, -1), [window.movedim(1, -1) for window in windows]
        shape = (-1,) if last else (-1, *(1,) * (x.dim() - 2))
        g_x = _total([window * taps[k].view(shape) for k, window in enumerate(windows)])
        others = [d for d in range(x.dim()) if d != (x.dim() - 1 if last else 1)]
        g_taps = torch.stack([(x * window).sum(others) for window in windows])  # [taps, in]
        return None, g_x.movedim(-1, 1) if last else g_x, g_taps.T.reshape(weight.shape)


def _spread_back(affine: Affine, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The output's gradient at the places of the input, with zeros between strides and around."""
    assert affine.stride is not None
    dims = len(affine.stride)
    for axis, step in enumerate(affine.stride, start=2):
        if step > 1:
            apart = grad.unsqueeze(axis + 1)
            grad = F.pad(apart, [0, 0] * (grad.dim() - 1 - axis) + [0, step - 1]).flatten(axis, axis + 1)
    margins: list[int] = []
    for axis in range(dims):
        reach = affine.dilation[axis] * (weight.shape[axis + 2] - 1)
        before = reach - affine.padding[axis]
        margins = [before, x.shape[axis + 2] + reach - before - grad.shape[axis + 2], *margins]
    return stored(F.pad(grad, margins))


def _mirrored_windows(affine: Affine, x: Tensor, weight: Tensor) -> Iterator[tuple[Any, ...]]:
    """For each tap of the kernel, the part of :func:`_spread_back` that reaches the input through it."""
    kernel = weight.shape[2:]
    for place in itertools.product(*(range(taps) for taps in kernel)):
        sides = zip(place, kernel, affine.dilation, x.shape[2:], strict=True)
        starts = [(gap * (taps - 1 - k), size) for k, taps, gap, size in sides]
        yield ..., *(slice(start, start + size) for start, size in starts)


class _Stored(torch.autograd.Function):
    """Makes the compiler store a value instead of computing it again wherever it is used.

    Here each value is used for all channels. A view by strides is always of a stored tensor.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor) -> Tensor:
        return value.as_strided(value.size(), value.stride())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Saves nothing: the value does not change."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def one_channel_gradients(
    affine: Affine, grad: Tensor, x: Tensor, weight: Tensor, to_x: bool, to_weight: bool
) -> tuple[Any, Any]:
    """Gradients of :func:`one_channel` with respect to ``x`` and ``weight``, None for those not requested."""
    if affine.stride is None or affine.transposed or affine.groups > 1:
        return affine.gradients(grad, x, weight, to_x, to_weight)
    if x.dim() == len(affine.stride) + 1:
        g_x, g_weight = one_channel_gradients(affine, grad[None], x[None], weight, to_x, to_weight)
        return (None if g_x is None else g_x[0]), g_weight
    taps = weight[0].flatten(1)  # [in, taps]
    maps = _shifted_back(affine, grad, x, weight)  # [taps, batch, positions...]
    g_x = g_weight = None
    if has_channels_last(x):
        flat = maps.flatten(1)  # [taps, batch · positions]
        if to_x:
            g_x = (flat.T @ taps.T).view(len(x), *x.shape[2:], -1).movedim(-1, 1)
        if to_weight:
            g_weight = (flat @ x.movedim(1, -1).reshape(-1, x.shape[1])).T
    else:
        flat = maps.flatten(2).transpose(0, 1)  # [batch, taps, positions]
        if to_x:
            g_x = (taps @ flat).view(x.shape)
        if to_weight:
            g_weight = torch.bmm(x.flatten(2), flat.transpose(1, 2)).sum(0)
    return g_x, None if g_weight is None else g_weight.reshape(weight.shape)


def _is_reduced(weight: Tensor) -> bool:
    """Whether compiled code sums over channels itself, in one pass over x, together with what computes x."""
    return is_fused() and math.prod(weight.shape[2:]) <= MOST_FUSED_TAPS


def _taps_first(weight: Tensor) -> Tensor:
    """b as [taps, in], stored so: with channels apart in memory, the compiler transposes x for each use of it."""
    return stored(weight[0].flatten(1).T.contiguous())


def _reduced(x: Tensor, channels: Tensor) -> Tensor:
    """Σ_j b_j x_j: [batch, 1, positions...]."""
    return (x * channels.view(-1, *(1,) * (x.dim() - 2))).sum(1, keepdim=True)


def _maps(x: Tensor, weight: Tensor) -> Tensor:
    """Σ_j b_jk x_j for each tap k: [batch, taps, positions...]."""
    taps = weight[0].flatten(1)  # [in, taps]
    if has_channels_last(x):
        return (x.movedim(1, -1) @ taps).movedim(-1, 1)
    return (taps.T @ x.flatten(2)).unflatten(2, x.shape[2:])


def _margins(affine: Affine) -> list[int]:
    """Zero padding in the order of ``F.pad``: the last dimension first, both of its sides."""
    return [margin for margin in reversed(affine.padding) for _ in range(2)]


def _windows(affine: Affine, x: Tensor, weight: Tensor) -> Iterator[tuple[Any, ...]]:
    """For each tap of the kernel, the part of the padded input that it meets."""
    assert affine.stride is not None
    kernel = weight.shape[2:]
    lengths = [
        size + 2 * margin - gap * (taps - 1)
        for size, margin, gap, taps in zip(x.shape[2:], affine.padding, affine.dilation, kernel, strict=True)
    ]
    for place in itertools.product(*(range(taps) for taps in kernel)):
        starts = [k * gap for k, gap in zip(place, affine.dilation, strict=True)]
        sides = zip(starts, lengths, affine.stride, strict=True)
        yield ..., *(slice(start, start + length, step) for start, length, step in sides)


def _shifted_back(affine: Affine, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of every tap's map, [taps, batch, positions...]: the output's gradient, where the tap met it."""
    padded = [size + 2 * margin for size, margin in zip(x.shape[2:], affine.padding, strict=True)]
    maps = grad.new_zeros(math.prod(weight.shape[2:]), len(x), *padded)
    for k, window in enumerate(_windows(affine, x, weight)):
        maps[k][window] = grad[:, 0]
    inside = tuple(slice(m, m + size) for size, m in zip(x.shape[2:], affine.padding, strict=True))
    return maps[:, :, *inside]
