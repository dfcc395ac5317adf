"""Rearrangements, applied to means and variances alike."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments.precision import widened
from mnvi.rules.table import RULES, NoRuleError, every
from mnvi.values.base import refuse_all_but_first, refuse_complex
from mnvi.values.gaussian import Gaussian

_ONE_TO_ONE = """
    view reshape flatten unflatten permute transpose swapaxes swapdims movedim moveaxis t squeeze unsqueeze expand
    repeat repeat_interleave tile broadcast_to narrow select index_select take_along_dim gather flip roll rot90 unfold
    diagonal masked_select pixel_shuffle pixel_unshuffle channel_shuffle contiguous clone detach cpu cuda
    ravel fliplr flipud take tril triu fold
"""
_ONE_TO_MANY = "chunk split tensor_split unbind hsplit vsplit"
_CASTS = "to type float double half bfloat16"
_LIKE = "zeros_like ones_like empty_like full_like rand_like randn_like"


def _out_of_place(name: str) -> list[Callable]:
    return [function for function in every(name) if not function.__name__.endswith("_")]


def _rearrange(function: Callable) -> Callable:
    if function is Tensor.unflatten:
        function = torch.unflatten  # dynamo cannot trace the method, which is Python code

    def answer(x: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
        refuse_all_but_first(function.__name__, x, (*args, *kwargs.values()))
        if function is Tensor.view and any(isinstance(a, torch.dtype) for a in (*args, *kwargs.values())):
            raise TypeError("view: a Gaussian's bits cannot be read as another dtype; convert it with x.to(dtype)")
        return _changed(x, function(x.mean, *args, **kwargs), function(x.var, *args, **kwargs))

    return answer


def _changed(x: Gaussian, mean: Tensor, var: Tensor) -> Gaussian:
    """``x`` itself if nothing changed, so that ``x + x.contiguous()`` still recognises one object."""
    return x if mean is x.mean and var is x.var else Gaussian.trusted(mean, var)


def _divide(function: Callable) -> Callable:
    def answer(x: Gaussian, *args: Any, **kwargs: Any) -> tuple[Gaussian, ...]:
        refuse_all_but_first(function.__name__, x, (*args, *kwargs.values()))
        pieces = zip(function(x.mean, *args, **kwargs), function(x.var, *args, **kwargs), strict=True)
        return tuple(Gaussian.trusted(mean, var) for mean, var in pieces)

    return answer


def _create(function: Callable) -> Callable:
    def answer(x: Gaussian, *args: Any, **kwargs: Any) -> Tensor:
        refuse_all_but_first(function.__name__, x, (*args, *kwargs.values()))
        created: Tensor = function(x.mean, *args, **kwargs)
        return created

    return answer


for _names, _make in ((_ONE_TO_ONE, _rearrange), (_ONE_TO_MANY, _divide), (_LIKE, _create)):
    for _name in _names.split():
        for _function in _out_of_place(_name):
            RULES.rule(_function)(_make(_function))


def _cast(function: Callable) -> Callable:
    """Beside half-precision means, variances are float32: as squares they would soon leave the range of float16."""

    def answer(x: Gaussian | Tensor, *args: Any, **kwargs: Any) -> Gaussian | Tensor:
        args = tuple(a.mean if isinstance(a, Gaussian) else a for a in args)  # x.to(like), whatever like is
        if not isinstance(x, Gaussian):
            cast: Tensor = function(x, *args, **kwargs)
            return cast
        mean = function(x.mean, *args, **kwargs)
        if not isinstance(mean, Tensor) or not mean.is_floating_point():
            raise TypeError("a Gaussian can only be converted to a floating-point dtype; for integers take x.mean")
        if mean.dtype == widened(mean).dtype:
            return _changed(x, mean, function(x.var, *args, **kwargs))
        options = {name: kwargs[name] for name in ("copy", "memory_format", "non_blocking") if name in kwargs}
        return _changed(x, mean, x.var.to(mean.device, torch.float32, **options))

    return answer


for _name in _CASTS.split():
    _function = getattr(Tensor, _name)
    RULES.rule(_function)(_cast(_function))


@RULES.rule(operator.getitem)
def getitem(x: Gaussian, index: Any) -> Gaussian:
    return x.map(lambda t: t[index])


@RULES.rule(operator.setitem)
def setitem(x: Gaussian, index: Any, value: Any) -> None:
    """Write a number, a tensor or a Gaussian into a part; what is known has no variance."""
    mean, var = (value.mean, value.var) if isinstance(value, Gaussian) else (value, 0.0)
    changed = x.mean.clone(), x.var.clone()
    changed[0][index] = mean
    changed[1][index] = var
    x.become(Gaussian.trusted(*changed))


@RULES.rule(Tensor.copy_)
def copy_(x: Any, src: Any, non_blocking: bool = False) -> Gaussian:
    if not isinstance(x, Gaussian):
        raise NoRuleError(RULES.explain(Tensor.copy_))
    x[...] = src
    return x


@RULES.rule(Tensor.view_as, Tensor.reshape_as)
def reshape_as(x: Gaussian | Tensor, other: Gaussian | Tensor) -> Gaussian | Tensor:
    return x.reshape(other.shape)


@RULES.rule(Tensor.expand_as)
def expand_as(x: Gaussian | Tensor, other: Gaussian | Tensor) -> Gaussian | Tensor:
    return x.expand(other.shape)


@RULES.rule(Tensor.type_as)
def type_as(x: Gaussian | Tensor, other: Gaussian | Tensor) -> Gaussian | Tensor:
    return x.to(other.device, other.dtype)


@RULES.rule(torch.broadcast_tensors)
def broadcast_tensors(*tensors: Gaussian | Tensor) -> tuple[Gaussian | Tensor, ...]:
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    return tuple(x.expand(shape) for x in tensors)


def _joined(function: Callable, values: Sequence[Gaussian | Tensor], *args: Any, **kwargs: Any) -> Gaussian:
    means = [x.mean if isinstance(x, Gaussian) else x for x in values]
    refuse_complex(*means)
    variances = [x.var if isinstance(x, Gaussian) else torch.zeros_like(widened(x)) for x in values]
    return Gaussian.trusted(function(means, *args, **kwargs), function(variances, *args, **kwargs))


@RULES.rule(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Gaussian | Tensor], dim: int = 0, *, out: None = None) -> Gaussian:
    return _joined(torch.cat, tensors, dim)


@RULES.rule(torch.stack)
def stack(tensors: Sequence[Gaussian | Tensor], dim: int = 0, *, out: None = None) -> Gaussian:
    return _joined(torch.stack, tensors, dim)


@RULES.rule(torch.hstack)
def hstack(tensors: Sequence[Gaussian | Tensor], *, out: None = None) -> Gaussian:
    return _joined(torch.hstack, tensors)


@RULES.rule(torch.vstack)
def vstack(tensors: Sequence[Gaussian | Tensor], *, out: None = None) -> Gaussian:
    return _joined(torch.vstack, tensors)


@RULES.rule(F.pad)
def pad(input: Gaussian, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Gaussian:
    """A reflected or replicated entry gets the moments of its source but counts as independent of it. A sum over both
    is too certain: an entry plus its copy gets the variance 2v instead of 4v."""
    return Gaussian.trusted(F.pad(input.mean, pad, mode, value), F.pad(input.var, pad, mode))


@RULES.rule(torch.where)
def where(condition: Any, input: Any, other: Any, *, out: None = None) -> Gaussian:
    if isinstance(condition, Gaussian):
        raise TypeError("where: condition must be a tensor of bool, got a Gaussian; compare its mean, e.g. x.mean > 0")
    values = input, other
    means: list[Any] = [x.mean if isinstance(x, Gaussian) else x for x in values]
    variances: list[Any] = [x.var if isinstance(x, Gaussian) else 0.0 for x in values]
    refuse_complex(*(x for x in means if isinstance(x, Tensor)))
    mean, var = torch.where(condition, means[0], means[1]), torch.where(condition, variances[0], variances[1])
    return Gaussian.trusted(mean, (var.double() if mean.dtype == torch.float64 else var).expand_as(mean))


@RULES.rule(Tensor.where)
def where_method(input: Any, condition: Tensor, other: Any) -> Gaussian:
    return where(condition, input, other)


@RULES.rule(*every("masked_fill"))
def masked_fill(input: Any, mask: Tensor, value: Any) -> Gaussian:
    if isinstance(value, Gaussian):
        raise TypeError("masked_fill: value must be a number, got a Gaussian; use torch.where(mask, value, x)")
    return Gaussian.trusted(input.mean.masked_fill(mask, value), input.var.masked_fill(mask, 0.0))
