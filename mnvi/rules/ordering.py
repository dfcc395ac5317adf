"""Order and comparison by mean: which entry comes first, which is larger.

The meaning: order, positions and truth values are those of the means, and count as known. ``topk`` and ``sort`` pass on
the moments of the chosen entries. That is exact where the order is sure, i.e. where means lie many standard deviations
apart. Where entries compete, the true largest value has a larger mean and a smaller variance than the entry with the
largest mean: see :func:`mnvi.moments.pooling.max_pool`.

A comparison drops the uncertainty: ``torch.where(x > 0, x, 0)`` is not a ReLU. Near zero a ReLU has smaller variances
and larger means; use torch's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnvi.rules.extremes import Extreme
from mnvi.rules.table import RULES, every
from mnvi.values.gaussian import Gaussian

_COMPARISONS = "eq ne not_equal gt greater ge greater_equal lt less le less_equal"


def _picked(x: Gaussian, indices: Tensor, dim: int, keepdim: bool = True) -> Extreme:
    """The entries at these positions along a dimension."""
    values = x.map(lambda t: t.gather(dim, indices) if t.dim() else t)  # as torch, 0 is valid without dimensions
    if keepdim or not x.dim():
        return Extreme(values, indices)
    return Extreme(values.map(lambda t: t.squeeze(dim)), indices.squeeze(dim))


@RULES.rule(*every("topk"))
def topk(
    input: Gaussian, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: None = None
) -> Extreme:
    return _picked(input, torch.topk(input.mean, k, dim, largest, sorted).indices, dim)


@RULES.rule(*every("sort"))
def sort(
    input: Gaussian, dim: int = -1, descending: bool = False, *, stable: bool = False, out: None = None
) -> Extreme:
    return _picked(input, torch.sort(input.mean, dim=dim, descending=descending, stable=stable).indices, dim)


@RULES.rule(*every("msort"))
def msort(input: Gaussian, *, out: None = None) -> Gaussian:
    return sort(input, 0).values


@RULES.rule(*every("kthvalue"))
def kthvalue(input: Gaussian, k: int, dim: int = -1, keepdim: bool = False, *, out: None = None) -> Extreme:
    return _picked(input, torch.kthvalue(input.mean, k, dim, True).indices, dim, keepdim)


@RULES.rule(*every("median"))
def median(input: Gaussian, dim: int | None = None, keepdim: bool = False, *, out: None = None) -> Any:
    if dim is None:
        return median(input.flatten(), 0).values
    return _picked(input, torch.median(input.mean, dim, True).indices, dim, keepdim)


def _of_the_means(function: Callable) -> Callable:
    def answer(input: Any, *args: Any, **kwargs: Any) -> Tensor:
        values = [x.mean if isinstance(x, Gaussian) else x for x in (input, *args)]
        named = {name: x.mean if isinstance(x, Gaussian) else x for name, x in kwargs.items()}
        compared: Tensor = function(*values, **named)
        return compared

    return answer


for _name in (*_COMPARISONS.split(), "argmax", "argmin", "argsort"):
    RULES.rule(*(f for f in every(_name) if not f.__name__.endswith("_")))(_of_the_means(getattr(torch, _name)))
for _name in ("eq", "ne", "gt", "ge", "lt", "le"):  # dynamo calls the operators by these names
    RULES.rule(getattr(operator, _name), getattr(Tensor, f"__{_name}__"))(_of_the_means(getattr(torch, _name)))


@RULES.rule(*every("isnan"))
def isnan(input: Gaussian) -> Tensor:
    return input.mean.isnan() | input.var.isnan()


@RULES.rule(*every("isinf"))
def isinf(input: Gaussian) -> Tensor:
    return input.mean.isinf() | input.var.isinf()


@RULES.rule(*every("isfinite"))
def isfinite(input: Gaussian) -> Tensor:
    return input.mean.isfinite() & input.var.isfinite()
