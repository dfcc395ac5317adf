"""Values that compiled training computes again in the backward pass, instead of keeping them.

The compiler keeps what a convolution of the backward pass reads, even if one pass over other tensors gives it. For the
moments after an activation, which take one such pass, this would be most of a network's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mnvi.moments._torch import is_compiling, is_fused


def recomputed(function: Callable, *args: Any) -> Any:
    """``function(*args)``, whose results the backward pass of compiled code computes again from the arguments.

    Elsewhere this is the plain call. The compiler keeps what one such function hands to another, so wrap those whose
    results go to layers.

    Args:
        function: made of elementwise operations and sums.
        args: its arguments.

    Example:
        >>> import torch
        >>> recomputed(torch.square, torch.tensor([3.0]))
        tensor([9.])
    """
    if is_recomputed(*args):
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return function(*args)


def is_recomputed(*args: Any) -> bool:
    """Whether code for training is being compiled."""
    return (
        is_compiling()
        and is_fused()
        and torch.is_grad_enabled()
        and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
    )
