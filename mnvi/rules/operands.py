"""What rules share: reading their operands and their ``dim`` arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mnvi.moments.precision import widened
from mnvi.values.base import refuse_complex
from mnvi.values.gaussian import Gaussian


def moments_of(value: Any) -> tuple[Any, Any]:
    """Mean and variance; the variance of a tensor or a number is zero."""
    if isinstance(value, Gaussian):
        return value.mean, value.var
    if not isinstance(value, Tensor):
        return value, 0.0
    refuse_complex(value)
    return value, torch.zeros_like(widened(value))


def named_dims(dim: Any, ndim: int) -> tuple[int, ...]:
    """The dimensions that an argument ``dim`` names; as in torch, None and an empty list name all of them."""
    if isinstance(dim, int):
        return (dim,)
    return tuple(range(ndim)) if dim is None or not len(dim) else tuple(dim)
