"""Sums, differences, products, quotients, reductions."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from mnvi.moments import products
from mnvi.moments.maximum import maximum as larger
from mnvi.moments.precision import widened
from mnvi.rules.operands import named_dims
from mnvi.rules.table import RULES, every
from mnvi.values.base import refuse_complex
from mnvi.values.gaussian import Gaussian

Operand = Any  # a Gaussian, a tensor or a number; one Gaussian at least


def _mean(value: Operand) -> Any:
    return value.mean if isinstance(value, Gaussian) else value


def _result(mean: Tensor, var: Tensor) -> Gaussian:
    """Give the variance the shape and dtype of the mean, which a plain operand may have widened."""
    if mean.dtype == torch.float64:
        var = var.double()
    refuse_complex(mean)
    if not mean.is_floating_point():
        raise TypeError(f"a Gaussian has no {mean.dtype} values; choose a floating-point dtype, or use x.mean")
    return Gaussian.trusted(mean, var if var.shape == mean.shape else var.expand_as(mean))


def _squared(factor: Tensor | float, like: Tensor) -> Any:
    """Square in the dtype of the variance, because squares of integers and of half precision overflow early."""
    if isinstance(factor, Tensor) and factor.dtype not in (torch.float32, torch.float64):
        refuse_complex(factor)
        factor = factor.to(like.dtype)
    return factor * factor


@RULES.rule(*every("add"), operator.add)
def add(input: Operand, other: Operand, *, alpha: float = 1, out: None = None) -> Gaussian:
    if input is other:
        return mul(input, 1 + alpha)
    mean = torch.add(_mean(input), _mean(other), alpha=alpha)
    if not isinstance(other, Gaussian):
        return _result(mean, input.var)
    added = other.var if alpha in (1, -1) else other.var * (alpha * alpha)
    return _result(mean, input.var + added if isinstance(input, Gaussian) else added)


@RULES.rule(*every("sub", "subtract"), operator.sub)
def sub(input: Operand, other: Operand, *, alpha: float = 1, out: None = None) -> Gaussian:
    return add(input, other, alpha=-alpha)


@RULES.rule(*every("rsub"), Tensor.__rsub__)
def rsub(input: Operand, other: Operand, *, alpha: float = 1) -> Gaussian:
    if isinstance(other, Gaussian | Tensor):
        return sub(other, input, alpha=alpha)
    return _result(other - alpha * input.mean, alpha * alpha * input.var)


@RULES.rule(*every("neg", "negative"), operator.neg)
def neg(x: Gaussian) -> Gaussian:
    return Gaussian.trusted(-x.mean, x.var)


@RULES.rule(*every("mul", "multiply"), operator.mul)
def mul(input: Operand, other: Operand, *, out: None = None) -> Gaussian:
    if input is other:
        return square(input)
    if isinstance(input, Gaussian) and isinstance(other, Gaussian):
        return Gaussian.trusted(*products.product(input.mean, input.var, other.mean, other.var))
    x, factor = (input, other) if isinstance(input, Gaussian) else (other, input)
    return _result(x.mean * factor, x.var * _squared(factor, x.var))


@RULES.rule(*every("div", "divide", "true_divide"), Tensor.__truediv__, operator.truediv)
def div(input: Operand, other: Operand, *, rounding_mode: str | None = None, out: None = None) -> Gaussian:
    if rounding_mode is not None:
        raise TypeError(f"div: rounding_mode={rounding_mode!r} has no meaning for a Gaussian; divide without it")
    if input is other:
        raise TypeError("div: a Gaussian divided by itself is 1, not a Gaussian; use torch.ones_like(x)")
    if isinstance(other, Gaussian):
        return mul(input, reciprocal(other))  # first order in the divisor; reciprocal's docstring gives the error
    return _result(input.mean / other, input.var / _squared(other, input.var))


@RULES.rule(Tensor.__rdiv__)
def rdiv(input: Operand, other: Operand) -> Gaussian:
    return div(other, input)


@RULES.rule(*every("reciprocal"))
def reciprocal(x: Gaussian) -> Gaussian:
    r"""First-order: :math:`1/\mu` and :math:`v/\mu^4`. The reciprocal of a Gaussian has no moments; this holds only for
    :math:`\sigma \ll |\mu|`, as in division by a normalising constant.

    Against 2·10⁶ samples both are too small. The relative error is :math:`\sigma^2/\mu^2` for the mean and
    :math:`4\sigma^2/\mu^2` for the standard deviation: 0.25 % and 1 % at :math:`\sigma = |\mu|/20`, 1 % and 4 % at
    :math:`|\mu|/10`. Division by a ``Gaussian`` multiplies by this reciprocal.
    """
    inverse = widened(x.mean).reciprocal()
    square = inverse.square()
    return Gaussian.trusted(inverse.to(x.mean.dtype), x.var * square * square)


@RULES.rule(*every("square"))
def square(x: Gaussian) -> Gaussian:
    return Gaussian.trusted(*products.square(x.mean, x.var))


@RULES.rule(*every("maximum"), *(torch.fmax, Tensor.fmax))
def maximum(input: Operand, other: Operand, *, out: None = None) -> Gaussian:
    """Clark's formula, exact for independent operands; a plain tensor is an operand without variance."""
    if input is other:
        assert isinstance(input, Gaussian)
        return input
    moments = [(x.mean, x.var) if isinstance(x, Gaussian) else _known(x) for x in (input, other)]
    mean, var = larger(*moments[0], *moments[1])
    return _result(mean, var)


@RULES.rule(*every("minimum"), *(torch.fmin, Tensor.fmin))
def minimum(input: Operand, other: Operand, *, out: None = None) -> Gaussian:
    if input is other:
        assert isinstance(input, Gaussian)
        return input
    return neg(maximum(-input, -other))


def _known(value: Any) -> tuple[Tensor, Tensor]:
    refuse_complex(value)
    return value, torch.zeros_like(value, dtype=widened(value).dtype)


@RULES.rule(*every("sum"))
def sum(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
    total = torch.sum(input.mean, *args, **kwargs)
    return _result(total, torch.sum(input.var, *args, **{**kwargs, "dtype": None}))


@RULES.rule(*every("cumsum"))
def cumsum(input: Gaussian, dim: int, *, dtype: torch.dtype | None = None, out: None = None) -> Gaussian:
    """Variance of each entry by itself: the result does not record that neighbours share most of their terms."""
    return _result(torch.cumsum(input.mean, dim, dtype=dtype), torch.cumsum(input.var, dim))


@RULES.rule(*every("prod"))
def prod(input: Gaussian, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Gaussian:
    x = input if dtype is None else input.to(dtype)
    if dim is None or not x.dim():
        return Gaussian.trusted(*products.product_along(x.mean.flatten(), x.var.flatten(), 0))
    product = Gaussian.trusted(*products.product_along(x.mean, x.var, dim))
    return product.map(lambda t: t.unsqueeze(dim)) if keepdim else product


@RULES.rule(*every("cumprod"))
def cumprod(input: Gaussian, dim: int, *, dtype: Any = None, out: None = None) -> Gaussian:
    """Variance of each entry by itself: the result does not record that neighbours share most of their factors."""
    x = input if dtype is None else input.to(dtype)
    return Gaussian.trusted(*products.running_product(x.mean, x.var, dim)) if x.dim() else x


@RULES.rule(*every("mean"))
def mean(
    input: Gaussian,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    keepdims: bool = False,
    dtype: Any = None,
    out: None = None,
) -> Gaussian:
    r"""Mean of :math:`n` entries: variance :math:`\frac{1}{n^2}\sum_i v_i`."""
    dim, keepdim = axis if dim is None else dim, keepdim or keepdims
    dims = named_dims(dim, input.dim())
    average = torch.mean(input.mean, dims, keepdim, dtype=dtype)
    count = 1
    for d in dims:
        count *= input.shape[d] if input.dim() else 1  # torch accepts dim 0 without dimensions too
    return _result(average, torch.mean(input.var, dims, keepdim) / max(count, 1))


@RULES.rule(*every("addcmul"))
def addcmul(input: Operand, tensor1: Operand, tensor2: Operand, *, value: float = 1, out: None = None) -> Gaussian:
    if isinstance(input, Gaussian) and (input is tensor1 or input is tensor2):
        raise ValueError("addcmul: the Gaussian input is also a factor, so it is not independent of the product")
    if not isinstance(tensor1, Gaussian) and not isinstance(tensor2, Gaussian):
        return add(input, tensor1 * tensor2, alpha=value)
    return add(input, mul(tensor1, tensor2), alpha=value)


@RULES.rule(*every("lerp"))
def lerp(input: Operand, end: Operand, weight: Any, *, out: None = None) -> Gaussian:
    r"""For independent ends and a known weight w, exact: variance :math:`(1-w)^2 v_a + w^2 v_b`."""
    if isinstance(weight, Gaussian):
        raise TypeError("lerp: weight must be a number or a tensor, got a Gaussian; pass its mean")
    if input is end:
        return _result(torch.lerp(input.mean, input.mean, weight), input.var)
    return add(_scaled(input, 1 - weight), _scaled(end, weight))


def _scaled(value: Operand, factor: Any) -> Any:
    return mul(value, factor) if isinstance(value, Gaussian) else value * factor
