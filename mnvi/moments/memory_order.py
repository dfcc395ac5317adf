"""Elementwise code for the compiler, in the order in which images lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mnvi.moments._torch import is_fused


def in_memory_order(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> Any:
    """``function(*tensors)`` for an elementwise function of images; compiled code first turns images whose channels lie
    last into [batch, positions, channels].

    The compiler lays intermediate results out as the operands lie, but takes the order of the dimensions where an
    operand broadcasts. With channels last that costs a transposition each time. The positions are one dimension
    because the compiler takes dimension 1 of any four for channels, and puts it last in what a backward pass keeps.

    Args:
        function: elementwise, from tensors to a tuple of tensors.
        tensors: [batch, channels, positions...] of one shape, or with a size of 1 in the batch, in the channels, or in
            all positions; the first one decides.

    Example:
        >>> import torch
        >>> in_memory_order(lambda x: (x + 1,), torch.zeros(1, 2, 1))
        (tensor([[[1.],
                 [1.]]]),)
    """
    if not (is_fused() and has_channels_last(tensors[0])):
        return function(*tensors)
    positions = tensors[0].shape[2:]
    results = function(*(t.movedim(1, -1).flatten(1, -2) for t in tensors))
    return tuple(result.unflatten(1, positions).movedim(-1, 1) for result in results)


def has_channels_last(x: Tensor) -> bool:
    """Whether the channels of images are next to each other in memory.

    Example:
        >>> import torch
        >>> has_channels_last(torch.zeros(1, 2, 3).movedim(-1, 1))
        True
    """
    return x.dim() > 2 and x.stride(1) == 1 and x.shape[1] > 1
