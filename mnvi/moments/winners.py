"""The winners of a max-pooling whose windows tile the input, for compiled training."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from mnvi.moments.one_channel import stored


def tiles(values: Tensor, kernel: tuple[int, ...], first: int) -> list[Tensor]:
    """The entries at each place of the windows, in row-major order.

    Their positions are one dimension: the compiler takes dimension 1 of any four for channels, and would lay images
    whose channels come last out in an order that it then transposes.

    Args:
        values: a tensor whose pooled dimensions are multiples of the windows' sides.
        kernel: the sides of a window; windows neither overlap nor leave gaps.
        first: the first pooled dimension.

    Example:
        >>> import torch
        >>> tiles(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), (2,), 1)
        [tensor([[1., 3.]]), tensor([[2., 4.]])]
    """
    for d in reversed(range(len(kernel))):
        values = values.unflatten(first + d, (-1, kernel[d]))
    found = []
    for place in itertools.product(*(range(side) for side in kernel)):
        index: list[Any] = [slice(None)] * first
        for i in place:
            index += [slice(None), i]
        found.append(values[tuple(index)].flatten(first, first + len(kernel) - 1))
    return found


def winning_places(means: list[Tensor]) -> Tensor:
    """The number of the largest of several tensors, entry by entry: the first one of equals; NaN counts as largest.

    Example:
        >>> import torch
        >>> winning_places([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])])
        tensor([1, 0], dtype=torch.int8)
    """
    best, place = means[0], torch.zeros_like(means[0], dtype=torch.int8)
    for k, mean in enumerate(means[1:], 1):
        larger = (mean > best) | mean.isnan()
        best, place = torch.where(larger, mean, best), torch.where(larger, k, place)
    return stored(place)


def winners(values: Tensor, place: Tensor, kernel: tuple[int, ...], first: int) -> Tensor:
    """The entries of windows at given places; the backward pass writes each gradient where its entry came from.

    Args:
        values, kernel, first: as in :func:`tiles`.
        place: a number for each window, from :func:`winning_places`. It and the result have one dimension for the
            positions.

    Example:
        >>> import torch
        >>> winners(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[1, 0]]), (2,), 1)
        tensor([[2., 3.]])
    """
    picked: Tensor = _Winners.apply(values, place, kernel, first)
    return stored(picked)


class _Winners(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, place: Tensor, kernel: tuple[int, ...], first: int) -> Tensor:
        picked, *others = tiles(values, kernel, first)
        for k, entry in enumerate(others, 1):
            picked = torch.where(place == k, entry, picked)
        return picked

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        values, place, ctx.kernel, ctx.first = inputs
        ctx.shape = values.shape
        ctx.save_for_backward(place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        kernel: tuple[int, ...] = ctx.kernel
        apart = [size for d, side in enumerate(kernel) for size in (ctx.shape[ctx.first + d] // side, 1)]
        grad, place = (values.unflatten(ctx.first, apart) for values in (grad, place))
        sides = [size for side in kernel for size in (1, side)]
        after = len(ctx.shape) - ctx.first - len(kernel)
        codes = torch.arange(math.prod(kernel), device=grad.device).view(*sides, *(1,) * after)
        return torch.where(place == codes, grad, 0.0).reshape(ctx.shape), None, None, None
