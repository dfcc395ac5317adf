"""Sums, differences, products, quotients, reductions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mnvi.gaussian import RULES, Gaussian
from mnvi.moments import products
from mnvi.precision import full_precision, widened
from mnvi.registry import every

Operand = Gaussian | Tensor | float


def _var(value: Operand) -> Tensor | float:
    return value.var if isinstance(value, Gaussian) else 0.0


def _mean(value: Operand) -> Any:
    return value.mean if isinstance(value, Gaussian) else value


def _result(mean: Tensor, var: Any) -> Gaussian:
    """Broadcasting against a plain operand can widen the mean alone, in shape or in dtype."""
    if mean.dtype == torch.float64:
        var = var.double()
    return Gaussian.trusted(mean, var if var.shape == mean.shape else var.expand_as(mean))


def _squared(factor: Tensor | float, like: Tensor) -> Any:
    """Squares of integers and of half precision overflow early, so they are taken in the dtype of the variance."""
    if isinstance(factor, Tensor) and factor.dtype not in (torch.float32, torch.float64):
        factor = factor.to(like.dtype)
    return factor * factor


@RULES.rule(*every("add"))
def add(a: Operand, b: Operand, *, alpha: float = 1, out: None = None) -> Gaussian:
    if a is b:
        return mul(a, 1 + alpha)
    return _result(torch.add(_mean(a), _mean(b), alpha=alpha), _var(a) + alpha * alpha * _var(b))


@RULES.rule(*every("sub", "subtract"))
def sub(a: Operand, b: Operand, *, alpha: float = 1, out: None = None) -> Gaussian:
    return add(a, b, alpha=-alpha)


@RULES.rule(*every("rsub"), Tensor.__rsub__)
def rsub(a: Operand, b: Operand, *, alpha: float = 1) -> Gaussian:
    if isinstance(b, Gaussian | Tensor):
        return sub(b, a, alpha=alpha)
    return Gaussian.trusted(b - alpha * _mean(a), alpha * alpha * _var(a))  # type: ignore[arg-type, operator]


@RULES.rule(*every("neg", "negative"))
def neg(x: Gaussian) -> Gaussian:
    return Gaussian.trusted(-x.mean, x.var)


@RULES.rule(*every("mul", "multiply"))
def mul(a: Operand, b: Operand, *, out: None = None) -> Gaussian:
    if isinstance(a, Gaussian) and isinstance(b, Gaussian):
        if a is b:
            return square(a)
        return Gaussian.trusted(*products.product(a.mean, a.var, b.mean, b.var))
    x, factor = (a, b) if isinstance(a, Gaussian) else (b, a)
    assert isinstance(x, Gaussian)
    return _result(x.mean * factor, x.var * _squared(factor, x.var))  # type: ignore[arg-type]


@RULES.rule(*every("div", "divide", "true_divide"), Tensor.__truediv__)
def div(a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Gaussian:
    if rounding_mode is not None:
        raise TypeError(f"div: rounding_mode={rounding_mode!r} has no meaning for a Gaussian; divide without it")
    if isinstance(b, Gaussian):
        return mul(a, reciprocal(b))
    assert isinstance(a, Gaussian)
    return _result(a.mean / b, a.var / _squared(b, a.var))


@RULES.rule(*every("reciprocal"))
def reciprocal(x: Gaussian) -> Gaussian:
    r"""First-order: :math:`1/\mu` and :math:`v/\mu^4`. A reciprocal Gaussian has no moments; this is right for
    :math:`\sigma \ll |\mu|` only, as where a normalising constant is divided by."""
    inverse = x.mean.reciprocal()
    return Gaussian.trusted(inverse, x.var * inverse.square().square())


@RULES.rule(*every("square"))
def square(x: Gaussian) -> Gaussian:
    return Gaussian.trusted(*products.square(x.mean, x.var))


@RULES.rule(*every("matmul", "bmm", "mm"), Tensor.__matmul__, Tensor.__rmatmul__)
def matmul(a: Gaussian | Tensor, b: Gaussian | Tensor, *, out: None = None) -> Gaussian:
    if isinstance(a, Gaussian) and isinstance(b, Gaussian):
        mean = torch.matmul(a.mean, b.mean)
        with full_precision(a.var):
            return Gaussian.trusted(mean, products.matmul(widened(a.mean), a.var, widened(b.mean), b.var)[1])
    mean = torch.matmul(_mean(a), _mean(b))
    with full_precision(a.var if isinstance(a, Gaussian) else b.var):  # type: ignore[union-attr]
        if isinstance(a, Gaussian):
            return Gaussian.trusted(mean, torch.matmul(a.var, b.to(a.var.dtype).square()))
        assert isinstance(b, Gaussian)
        return Gaussian.trusted(mean, torch.matmul(a.to(b.var.dtype).square(), b.var))


@RULES.rule(*every("sum"))
def sum(x: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
    return x.map(lambda t: torch.sum(t, *args, **kwargs))


@RULES.rule(*every("mean"))
def mean(x: Gaussian, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Gaussian:
    r"""Mean of :math:`n` entries: variance :math:`\frac{1}{n^2}\sum_i v_i`."""
    dims = tuple(range(x.dim())) if dim is None else dim
    average = torch.mean(x.mean, dims, keepdim, dtype=dtype)
    count = x.mean.numel() / max(average.numel(), 1)
    return Gaussian.trusted(average, torch.mean(x.var, dims, keepdim) / count)
