"""What rules of several operands share."""

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
