"""Pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.gaussian import RULES, Gaussian
from mnvi.moments import pooling


def _max_pool(dims: int, adaptive: bool, with_indices: bool) -> Callable:
    moments = pooling.adaptive_max_pool if adaptive else pooling.max_pool

    def answer(x: Gaussian, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        mean, var, indices = moments(x.mean, x.var, dims, *args, **kwargs)
        pooled = Gaussian.trusted(mean, var)
        return (pooled, indices) if with_indices or return_indices else pooled

    return answer


def _average(moments: Callable, dims: int) -> Callable:
    def answer(x: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
        return Gaussian.trusted(*moments(x.mean, x.var, dims, *args, **kwargs))

    return answer


def _spellings(name: str) -> set[Callable]:
    """A pooling function by this name, and by it with a leading underscore: what torch hands on varies."""
    found = (getattr(space, prefix + name, None) for space in (F, torch, torch._C._nn) for prefix in ("", "_"))
    return {function for function in found if function is not None}


for _dims in (1, 2, 3):
    for _adaptive, _prefix in ((False, ""), (True, "adaptive_")):
        for _with_indices, _suffix in ((False, ""), (True, "_with_indices")):
            for _function in _spellings(f"{_prefix}max_pool{_dims}d{_suffix}"):
                RULES.rule(_function)(_max_pool(_dims, _adaptive, _with_indices))
    for _function in _spellings(f"avg_pool{_dims}d"):
        RULES.rule(_function)(_average(pooling.avg_pool, _dims))
    for _function in _spellings(f"adaptive_avg_pool{_dims}d"):
        RULES.rule(_function)(_average(pooling.adaptive_avg_pool, _dims))
