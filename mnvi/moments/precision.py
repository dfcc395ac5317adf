"""Variances are squares: under autocast they stay in float32, whatever the means use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(tensor: Tensor) -> AbstractContextManager:
    """Switch autocast off on the tensor's device, if it is on."""
    if autocasts(tensor):
        return torch.autocast(tensor.device.type, enabled=False)
    return nullcontext()


def autocasts(tensor: Tensor) -> bool:
    """Whether autocast is on for the tensor's device; there is none on the meta device."""
    device = tensor.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def widened(tensor: Tensor) -> Tensor:
    """Half precision becomes float32; other dtypes stay."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
