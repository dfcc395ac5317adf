"""Pooling; ``mnvi.options(max_pool=...)`` chooses the approximation of a maximum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from mnvi.moments import pooling, windows
from mnvi.moments._torch import NATIVE_FUNCTIONS
from mnvi.rules.options import current
from mnvi.rules.table import RULES
from mnvi.values.gaussian import Gaussian


def _max_pool(dims: int, adaptive: bool, with_indices: bool) -> Callable:
    choices: dict[str, Callable]
    if adaptive:
        choices = {"argmax": pooling.adaptive_max_pool, "clark": pooling.clark_adaptive_max_pool}
    else:
        choices = {"argmax": pooling.max_pool, "clark": pooling.clark_max_pool}

    def answer(input: Gaussian, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        if input.before is not None and not (adaptive or with_indices or return_indices):
            together = pooling.relu_max_pool(*input.before, dims, *args, **kwargs)
            if together is not None and current().max_pool == "argmax":
                return Gaussian.trusted(*together)
        mean, var, indices = choices[current().max_pool](input.mean, input.var, dims, *args, **kwargs)
        pooled = Gaussian.trusted(mean, var)
        return (pooled, indices) if with_indices or return_indices else pooled

    return answer


def _average(moments: Callable, dims: int) -> Callable:
    def answer(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
        return Gaussian.trusted(*moments(input.mean, input.var, dims, *args, **kwargs))

    return answer


def _unpool(function: Callable) -> Callable:
    def answer(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
        """Places of which nothing was pooled become zero, without variance."""
        return input.map(lambda t: function(t, *args, **kwargs))

    return answer


def _answer(name: str, handler: Callable, *namespaces: Any) -> None:
    for namespace in namespaces:
        if function := getattr(namespace, name, None):
            RULES.rule(function)(handler)


for _d in (1, 2, 3):
    _answer(f"max_pool{_d}d", _max_pool(_d, adaptive=False, with_indices=False), F, torch)
    _answer(f"max_pool{_d}d_with_indices", _max_pool(_d, adaptive=False, with_indices=True), F, torch, NATIVE_FUNCTIONS)
    _answer(f"adaptive_max_pool{_d}d", _max_pool(_d, adaptive=True, with_indices=False), F)
    # Outside nn.functional the adaptive functions always return indices.
    _answer(f"adaptive_max_pool{_d}d", _max_pool(_d, adaptive=True, with_indices=True), torch, NATIVE_FUNCTIONS)
    _answer(f"adaptive_max_pool{_d}d_with_indices", _max_pool(_d, adaptive=True, with_indices=True), F)
    _answer(f"avg_pool{_d}d", _average(pooling.avg_pool, _d), F, torch, NATIVE_FUNCTIONS)
    _answer(f"adaptive_avg_pool{_d}d", _average(pooling.adaptive_avg_pool, _d), F, torch, NATIVE_FUNCTIONS)
    _answer(f"max_unpool{_d}d", _unpool(getattr(F, f"max_unpool{_d}d")), F)
    _answer(f"lp_pool{_d}d", _average(windows.lp_pool, _d), F)
