"""Elementwise code for the compiler, in the order in which images lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mnvi.moments._torch import is_fused


def in_memory_order(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> Any:
    """``function(*tensors)`` for an elementwise function of images; compiled code moves channels that lie last to the
    end first.

    The compiler lays intermediate results out as the operands lie, but takes the order of the dimensions where an
    operand broadcasts. With channels last that costs a transposition each time.

    Args:
        function: elementwise, from tensors to a tuple of tensors.
        tensors: of one number of dimensions, [batch, channels, ...], or broadcast to such; the first one decides.

    Example:
        >>> import torch
        >>> in_memory_order(lambda x: (x + 1,), torch.zeros(1, 2, 1))
        (tensor([[[1.],
                 [1.]]]),)
    """
    if not (is_fused() and has_channels_last(tensors[0])):
        return function(*tensors)
    return tuple(result.movedim(-1, 1) for result in function(*(t.movedim(1, -1) for t in tensors)))


def has_channels_last(x: Tensor) -> bool:
    """Whether the channels of images are next to each other in memory.

    Example:
        >>> import torch
        >>> has_channels_last(torch.zeros(1, 2, 3).movedim(-1, 1))
        True
    """
    return x.dim() > 2 and x.stride(1) == 1 and x.shape[1] > 1
