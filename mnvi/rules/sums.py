"""Which functions add entries of a value, and over which dimensions; for :func:`mnvi.rules.copies.check_sum`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments._torch import NATIVE_FUNCTIONS
from mnvi.rules.contractions import parsed
from mnvi.rules.known_weights import CONVOLUTIONS
from mnvi.rules.operands import named_dims
from mnvi.rules.table import every

Added = tuple[str, Any, Iterable[int], int]  # name of the function, the value, dimensions, groups


def added_by(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Iterator[Added]:
    """What a call adds up; nothing for functions that add nothing.

    Example:
        >>> import torch
        >>> [(name, dims) for name, _, dims, _ in added_by(torch.sum, (torch.ones(2, 3), 1), {})]
        [('sum', (1,))]
    """
    found = _ADDING.get(function)
    if found is not None:
        for value, dims, groups in found(args, kwargs):
            yield getattr(function, "__name__", str(function)), value, dims, groups


def _argument(args: tuple, kwargs: dict[str, Any], place: int, *names: str) -> Any:
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[place] if len(args) > place else None


def _reduced(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    x = _argument(args, kwargs, 0, "input")
    if x.dim():
        yield x, reduced_dims(args, kwargs, x.dim()), 1


def reduced_dims(args: tuple, kwargs: dict[str, Any], count: int) -> tuple[int, ...]:
    """The dimensions that a sum or mean adds over, of a value with ``count`` dimensions."""
    return named_dims(_argument(args, kwargs, 1, "dim", "axis"), count)


def _linear(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    yield _argument(args, kwargs, 0, "input"), (-1,), 1


def _product(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    a, b = _argument(args, kwargs, 0, "input"), _argument(args, kwargs, 1, "other", "mat2", "vec")
    yield a, (-1,), 1
    yield b, (-2 if len(getattr(b, "shape", ())) > 1 else -1,), 1


def _reflected(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    yield from _product(args[::-1], kwargs)


def _inner(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    yield _argument(args, kwargs, 0, "input"), (-1,), 1
    yield _argument(args, kwargs, 1, "other", "tensor"), (-1,), 1


def _tensordot(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    dims = _argument(args, kwargs, 2, "dims")
    dims = dims.tolist() if isinstance(dims, Tensor) else 2 if dims is None else dims
    both = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    for place, own in enumerate(both):
        yield _argument(args, kwargs, place, "ab"[place]), own, 1


def _einsum(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    equation, *operands = args or (None,)
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if isinstance(equation, str):
        terms, result = parsed(equation, tuple(operands))
        for term, value in zip(terms, operands, strict=True):
            yield value, [d for d, letter in enumerate(term) if letter not in result], 1


def _convolution(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    weight, groups = _argument(args, kwargs, 1, "weight"), _argument(args, kwargs, 6, "groups")
    yield _argument(args, kwargs, 0, "input"), window_dims(weight), groups or 1


def _transposed(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
    weight, groups = _argument(args, kwargs, 1, "weight"), _argument(args, kwargs, 6, "groups")
    yield _argument(args, kwargs, 0, "input"), (1 - weight.dim(),), groups or 1


def window_dims(weight: Tensor) -> tuple[int, ...]:
    """The dimensions of its input that a convolution adds over: channels, and positions if it sees several at once."""
    spatial = weight.dim() - 2
    return tuple(range(-spatial - 1, 0)) if any(size > 1 for size in weight.shape[2:]) else (-spatial - 1,)


def _pooled(spatial: int) -> Callable:
    def added(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple]:
        yield _argument(args, kwargs, 0, "input"), range(-spatial, 0), 1

    return added


_ADDING: dict[Callable, Callable[[tuple, dict[str, Any]], Iterator[tuple]]] = {
    F.linear: _linear,
    torch.einsum: _einsum,
    torch.tensordot: _tensordot,
    operator.matmul: _product,
    Tensor.__matmul__: _product,
    Tensor.__rmatmul__: _reflected,
}
for _functions, _found in (
    (every("sum", "mean", "cumsum"), _reduced),
    (every("matmul", "mm", "bmm", "mv"), _product),
    (every("inner", "dot", "vdot"), _inner),
    (CONVOLUTIONS[:3], _convolution),
    (CONVOLUTIONS[3:], _transposed),
):
    _ADDING |= dict.fromkeys(_functions, _found)
for _d in (1, 2, 3):
    for _name in (f"avg_pool{_d}d", f"adaptive_avg_pool{_d}d"):
        for _space in (F, torch, NATIVE_FUNCTIONS):
            if hasattr(_space, _name):
                _ADDING[getattr(_space, _name)] = _pooled(_d)
