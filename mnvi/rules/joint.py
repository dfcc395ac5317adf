"""The table of :class:`mnvi.JointGaussian`: linear maps, ReLU, dropout, arithmetic with known numbers, shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments import joint
from mnvi.moments.activations.relu import relu as relu_moments
from mnvi.moments.checking import check_number
from mnvi.moments.precision import widened
from mnvi.rules.options import current
from mnvi.rules.table import JOINT_RULES, every
from mnvi.values.base import refuse_complex
from mnvi.values.joint import JointGaussian


@JOINT_RULES.rule(F.linear)
def linear(x: Any, weight: Any, bias: Any = None) -> JointGaussian:
    if not isinstance(x, JointGaussian) or not isinstance(weight, Tensor):
        raise TypeError("linear: only the input may be a JointGaussian; random weights belong to a posterior")
    return JointGaussian.trusted(*joint.linear(x.mean, x.spread, weight, bias))


@JOINT_RULES.rule(*every("relu"))
def relu(x: JointGaussian, inplace: bool = False) -> JointGaussian:
    if x.spread is None:
        return JointGaussian.trusted(torch.relu(x.mean))
    moments: Callable = joint.relu if x.is_full else relu_moments
    if current().activation == "taylor":
        moments = joint.first_order_relu
    return JointGaussian.trusted(*moments(x.mean, x.spread, current().relu_floor))


@JOINT_RULES.rule(F.dropout, torch.dropout)
def dropout(x: JointGaussian, p: float = 0.5, training: bool = True, inplace: bool = False) -> JointGaussian:
    r"""Identity in evaluation; in training variances grow by :math:`\frac{p}{1-p}(v + \mu^2)`, or one mask is drawn."""
    check_number("dropout: p", p, least=0, most=1)
    if not training or p == 0:
        return x
    if p == 1:
        return mul(x, 0)
    if current().dropout == "sample":
        return mul(x, F.dropout(torch.ones_like(x.mean), p))
    own = p / (1 - p) * (x.var + widened(x.mean).square())
    if x.spread is None or not x.is_full:
        return JointGaussian.trusted(x.mean, x.var + own)
    return JointGaussian.trusted(x.mean, x.spread + torch.diag_embed(own))


@JOINT_RULES.rule(*every("add"))
def add(input: Any, other: Any, *, alpha: float = 1, out: None = None) -> JointGaussian:
    x, known = _known_operand("add", input, other)
    mean = torch.add(x.mean, known, alpha=alpha) if x is input else torch.add(known, x.mean, alpha=alpha)
    return _like(x if x is input else mul(x, alpha), mean)


@JOINT_RULES.rule(*every("sub", "subtract"))
def sub(input: Any, other: Any, *, alpha: float = 1, out: None = None) -> JointGaussian:
    return add(input, other, alpha=-alpha)


@JOINT_RULES.rule(*every("rsub"), Tensor.__rsub__)
def rsub(input: Any, other: Any, *, alpha: float = 1) -> JointGaussian:
    return add(other, input, alpha=-alpha)


@JOINT_RULES.rule(*every("neg", "negative"))
def neg(x: JointGaussian) -> JointGaussian:
    return mul(x, -1)


@JOINT_RULES.rule(*every("mul", "multiply"))
def mul(input: Any, other: Any, *, out: None = None) -> JointGaussian:
    x, factor = _known_operand("mul", input, other)
    if x.spread is None:
        return JointGaussian.trusted(x.mean * factor)
    if not isinstance(factor, Tensor) or factor.dim() == 0:
        return JointGaussian.trusted(x.mean * factor, x.spread * (factor * factor))
    if x.is_full:
        return _like(
            JointGaussian.trusted(x.mean, x.spread * factor.unsqueeze(-1) * factor.unsqueeze(-2)), x.mean * factor
        )
    return _like(JointGaussian.trusted(x.mean, x.spread * factor.square()), x.mean * factor)


@JOINT_RULES.rule(*every("div", "divide", "true_divide"), Tensor.__truediv__)
def div(input: Any, other: Any) -> JointGaussian:
    if isinstance(other, JointGaussian):
        raise TypeError("div: a JointGaussian can be divided by numbers and tensors, not the other way round")
    return mul(input, 1 / other)


def _entrywise(function: Callable) -> Callable:
    def answer(x: JointGaussian, *args: Any, **kwargs: Any) -> JointGaussian:
        result = x._each(lambda t: function(t, *args, **kwargs))
        if not result.mean.is_floating_point():
            raise TypeError("a JointGaussian can only be converted to a floating-point dtype; for integers take x.mean")
        if result.spread is not None and result.spread.dtype != widened(result.spread).dtype:
            assert x.spread is not None
            result.spread = x.spread.to(result.device, torch.float32)  # squares would leave float16's range
        return result

    return answer


def _same_shape(function: Callable) -> Callable:
    def answer(x: JointGaussian, *args: Any, **kwargs: Any) -> JointGaussian:
        mean = function(x.mean, *args, **kwargs)
        if x.spread is not None and mean.shape != x.shape:
            raise ValueError(
                f"{function.__name__}: a JointGaussian of shape {tuple(x.shape)} cannot become {tuple(mean.shape)}; "
                "its covariances are between the entries of the last dimension"
            )
        return JointGaussian.trusted(mean, x.spread)

    return answer


for _names, _make in (
    ("clone detach contiguous to float double", _entrywise),
    ("flatten reshape view squeeze unsqueeze", _same_shape),
):
    for _name in _names.split():
        for _function in every(_name):
            if not _function.__name__.endswith("_"):
                JOINT_RULES.rule(_function)(_make(_function))


def _known_operand(operation: str, a: Any, b: Any) -> tuple[JointGaussian, Any]:
    x, known = (a, b) if isinstance(a, JointGaussian) else (b, a)
    if not isinstance(known, Tensor | int | float):
        raise TypeError(
            f"{operation}: a JointGaussian takes a number or a tensor, got {type(known).__name__}; how two random "
            "values depend on each other is not tracked"
        )
    if isinstance(known, Tensor):
        refuse_complex(known)
    return x, known


def _like(x: JointGaussian, mean: Tensor) -> JointGaussian:
    """The spread of x with another mean, which broadcasting may have widened."""
    if x.spread is None:
        return JointGaussian.trusted(mean)
    shape = (*mean.shape, mean.shape[-1]) if x.is_full else mean.shape
    if mean.shape[-1] != x.shape[-1]:
        raise ValueError(f"a JointGaussian of shape {tuple(x.shape)} cannot broadcast to {tuple(mean.shape)}")
    return JointGaussian.trusted(mean, x.spread if x.spread.shape == shape else x.spread.expand(shape))
