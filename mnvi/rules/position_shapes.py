"""Rules for :attr:`mnvi.Gaussian.shared` under functions that rearrange, divide and join values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments import positions
from mnvi.moments.position_rows import position_dims
from mnvi.rules.positions import Rule, carrier, input_of, register, with_shared
from mnvi.rules.table import every
from mnvi.values.gaussian import Gaussian


def _reshape(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    x = input_of(args, kwargs)
    return result if result is x else with_shared(result, positions.reshaped(x.shared, x.shape, result.shape))


def _rearrange(function: Callable) -> Rule:
    """For functions that move whole dimensions."""

    def rule(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
        x, *rest = args
        return result if result is x else with_shared(result, function(x.shared, *rest, **kwargs))

    return rule


def _cat(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    values: Sequence[Any] = args[0] if args else kwargs["tensors"]
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.dim()
    like = carrier(*values)
    assert like.shared is not None
    along_positions = dim in position_dims(result.shape, like.shared) and like.shared.shape[dim] == 1
    parts = []
    for value in values:
        shape = list(like.shared.shape)
        if not along_positions:
            shape[dim] = value.shape[dim]
        known = isinstance(value, Gaussian) and value.shared is not None
        parts.append(value.shared if known else like.shared.new_zeros(shape))
        if list(parts[-1].shape) != shape:
            return result
    if not along_positions:
        return with_shared(result, torch.cat(parts, dim))
    sizes = [value.shape[dim] for value in values]
    pairs = sum(part * (size * (size - 1)) for part, size in zip(parts, sizes, strict=True))
    return with_shared(result, cast(Tensor, pairs) / (sum(sizes) * (sum(sizes) - 1)))


def _divide(function: Callable) -> Rule:
    """Pieces of channels get theirs of the covariance; pieces of positions keep it."""

    def rule(result: tuple, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        x, *rest = args
        dim = (rest[1] if len(rest) > 1 else kwargs.get("dim", 0)) % x.dim()
        pieces = [x.shared] * len(result) if x.shared.shape[dim] == 1 else function(x.shared, *rest, **kwargs)
        return tuple(with_shared(part, shared) for part, shared in zip(result, pieces, strict=True))

    return cast(Rule, rule)


def _getitem(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    """Indices of whole numbers, slices, None and ``...``; others mix dimensions."""
    x, index = args
    indices = index if isinstance(index, tuple) else (index,)
    if not all(i is None or i is Ellipsis or isinstance(i, int | slice) for i in indices):
        return result
    given = sum(i is not None and i is not Ellipsis for i in indices)
    if Ellipsis not in indices:
        indices = (*indices, Ellipsis)
    place = indices.index(Ellipsis)
    indices = (*indices[:place], *[slice(None)] * (x.dim() - given), *indices[place + 1 :])
    chosen: list[Any] = []
    sizes = iter(x.shared.shape)
    for i in indices:
        size = None if i is None else next(sizes)
        chosen.append(i if size != 1 else 0 if isinstance(i, int) else slice(None))
    return with_shared(result, x.shared[tuple(chosen)])


def _pad(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    """Copies covary as their sources do; constants covary with nothing."""
    x = input_of(args, kwargs)
    mode = args[2] if len(args) > 2 else kwargs.get("mode", "constant")
    dims = position_dims(result.shape, x.shared)
    if any(size != result.shape[d] and d not in dims for d, size in enumerate(x.shape)):
        return result
    before, after = x.numel(), result.numel()
    return with_shared(result, x.shared * (before / after) ** 2 if mode == "constant" else x.shared)


register(_cat, torch.cat, torch.concat, torch.concatenate)
register(_getitem, operator.getitem)
register(_pad, F.pad)
for _name in ("reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone", "detach"):
    register(_reshape, *(f for f in every(_name) if not f.__name__.endswith("_")))
for _name in ("permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "flip", "roll"):
    for _function in every(_name):
        if not _function.__name__.endswith("_"):
            register(_rearrange(_function), _function)
for _name in ("chunk", "split", "tensor_split"):
    for _function in every(_name):
        register(_divide(_function), _function)
