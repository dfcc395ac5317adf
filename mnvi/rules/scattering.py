"""Entries written, added or averaged into places that an index gives, as in message passing on graphs.

All are exact for the variance of each entry by itself, if no place gets two copies of one variable. Copies that
``gather`` or indexing made, e.g. of a node that sends along several edges, count as independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnvi.moments import scattering
from mnvi.rules.operands import moments_of
from mnvi.rules.table import RULES, every
from mnvi.values.gaussian import Gaussian

# Means and variances go the same way: the name of what is written, and its place among the arguments.
_WRITTEN = {
    "index_copy": ("source", 3),
    "index_put": ("values", 2),
    "masked_scatter": ("source", 2),
    "put": ("source", 2),
    "select_scatter": ("src", 1),
    "slice_scatter": ("src", 1),
    "diagonal_scatter": ("src", 1),
}


def _refuse_itself(name: str, target: Any, source: Any) -> None:
    if target is source:
        raise TypeError(f"{name}: the Gaussian is added to itself, and not independent of itself; scale it instead")


def _write(function: Callable, keyword: str, place: int) -> Callable:
    def answer(input: Any, *args: Any, **kwargs: Any) -> Gaussian:
        named = keyword in kwargs
        written = kwargs[keyword] if named else args[place - 1]
        if kwargs.get("accumulate") or args[place : place + 1] == (True,):
            _refuse_itself(function.__name__, input, written)

        def placed(into: Tensor, values: Tensor) -> Tensor:
            if named:
                filled: Tensor = function(into, *args, **{**kwargs, keyword: values})
                return filled
            filled = function(into, *args[: place - 1], values, *args[place:], **kwargs)
            return filled

        return Gaussian.trusted(*map(placed, moments_of(input), moments_of(written)))

    return answer


for _name, (_keyword, _place) in _WRITTEN.items():
    RULES.rule(*every(_name))(_write(getattr(torch, _name), _keyword, _place))


@RULES.rule(*every("scatter"))
def scatter(
    input: Any, dim: int, index: Tensor, src: Any = None, value: Any = None, *, reduce: str | None = None
) -> Gaussian:
    if reduce == "add":
        return scatter_add(input, dim, index, src)
    if reduce is not None:
        raise TypeError(f"scatter: reduce={reduce!r} has no rule for a Gaussian; use scatter_reduce with 'sum', 'mean'")
    target, source = moments_of(input), moments_of(value if src is None else src)
    return Gaussian.trusted(*(torch.scatter(into, dim, index, sent) for into, sent in zip(target, source, strict=True)))


@RULES.rule(*every("scatter_add"))
def scatter_add(input: Any, dim: int, index: Tensor, src: Any) -> Gaussian:
    return scatter_reduce(input, dim, index, src, "sum")


@RULES.rule(*every("scatter_reduce"))
def scatter_reduce(
    input: Any, dim: int, index: Tensor, src: Any, reduce: str, *, include_self: bool = True
) -> Gaussian:
    """``sum`` and ``mean`` are exact; ``amax`` and ``amin`` pass on the entry with the largest or smallest mean."""
    _refuse_itself("scatter_reduce", input, src)
    moments = (*moments_of(input), *moments_of(src))
    if reduce in ("sum", "mean"):
        add = scattering.summed if reduce == "sum" else scattering.averaged
        return Gaussian.trusted(*add(*moments, dim, index, include_self))
    if reduce in ("amax", "amin"):
        return Gaussian.trusted(*scattering.extreme(*moments, dim, index, reduce, include_self))
    raise TypeError(f"scatter_reduce: reduce={reduce!r} has no rule for a Gaussian; known: sum, mean, amax, amin")


@RULES.rule(*every("index_add"))
def index_add(input: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1, out: None = None) -> Gaussian:
    _refuse_itself("index_add", input, source)
    target, added = moments_of(input), moments_of(source)
    mean = torch.index_add(target[0], dim, index, added[0], alpha=alpha)
    return Gaussian.trusted(mean, torch.index_add(target[1], dim, index, added[1], alpha=alpha * alpha))


@RULES.rule(*every("index_fill"))
def index_fill(input: Gaussian, dim: int, index: Tensor, value: float) -> Gaussian:
    mean = torch.index_fill(input.mean, dim, index, value)
    return Gaussian.trusted(mean, torch.index_fill(input.var, dim, index, 0.0))
