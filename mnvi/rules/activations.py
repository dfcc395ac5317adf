"""Elementwise functions: torch's names for them, and the moments that answer.

``mnvi.options(activation="quadrature")`` replaces tables by the integrals that they are made from, and
``mnvi.options(activation="taylor")`` everything by the first-order rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments import positive
from mnvi.moments._torch import is_fused, let_dynamo_dispatch
from mnvi.moments.activations import elu as elu_moments
from mnvi.moments.activations import gelu as gelu_moments
from mnvi.moments.activations import logistic, piecewise, rectifiers, transcendental
from mnvi.moments.activations.hardswish import hardswish as hardswish_moments
from mnvi.moments.activations.relu import relu as relu_moments
from mnvi.moments.activations.softsign import softsign as softsign_moments
from mnvi.moments.checking import check_number
from mnvi.moments.position_rows import Picked, beside
from mnvi.moments.position_slopes import through_relu
from mnvi.moments.precision import widened
from mnvi.moments.quadrature import taylor_moments
from mnvi.rules.elementwise import elementwise
from mnvi.rules.options import current
from mnvi.rules.table import RULES, NoRuleError, every
from mnvi.values.gaussian import Gaussian

Function = Callable[[Tensor], Tensor]
Moments = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Bound = float | Tensor | None

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
_SOFTPLUS_THRESHOLD = 15.0  # above this, torch's switch to the identity makes no measurable difference


def _answer(x: Gaussian, function: Function, moments: Moments) -> Gaussian:
    if not isinstance(x, Gaussian):
        raise TypeError(
            f"only the first argument may be a Gaussian, but it is a {type(x).__name__}; pass x.mean instead"
        )
    wide = x.mean.to(x.var.dtype)  # half-precision means are rounded once, at the end
    if current().activation == "taylor":
        expectation, variance = taylor_moments(function, wide, x.var)
    else:
        expectation, variance = _chosen(moments)(wide, x.var)
    return Gaussian.trusted(expectation.to(x.mean.dtype), variance)


def _chosen(moments: Moments) -> Moments:
    """The moments as the option asks for them: with or without a table."""
    if current().activation != "quadrature":
        return moments
    reference: Moments = getattr(moments, "reference", moments)
    return reference


_WITHOUT_ARGUMENTS: dict[str, tuple[Function, Moments]] = {
    "relu6": (F.relu6, partial(piecewise.ramp, low=0.0, high=6.0)),
    "abs": (torch.abs, partial(piecewise.kink, above=1.0, below=-1.0)),
    "absolute": (torch.abs, partial(piecewise.kink, above=1.0, below=-1.0)),
    "hardswish": (F.hardswish, hardswish_moments),
    "selu": (F.selu, partial(elu_moments.elu, slope=_SELU_SCALE, depth=_SELU_SCALE * _SELU_ALPHA)),
    "sigmoid": (torch.sigmoid, logistic.sigmoid),
    "expit": (torch.sigmoid, logistic.sigmoid),
    "tanh": (torch.tanh, logistic.tanh),
    "tanhshrink": (F.tanhshrink, logistic.tanhshrink),
    "silu": (F.silu, logistic.silu),
    "mish": (F.mish, rectifiers.mish),
    "softsign": (F.softsign, softsign_moments),
    "erf": (torch.erf, gelu_moments.erf),
    "ndtr": (torch.special.ndtr, gelu_moments.normal_cdf),
    "exp": (torch.exp, transcendental.exp),
    "expm1": (torch.expm1, transcendental.expm1),
    "sin": (torch.sin, transcendental.sin),
    "cos": (torch.cos, transcendental.cos),
}


def without_arguments(function: Function, moments: Moments) -> Callable:
    def answer(x: Gaussian, inplace: bool = False, *, out: None = None) -> Gaussian:
        return _answer(x, function, moments)

    return answer


for _name, _pair in _WITHOUT_ARGUMENTS.items():
    RULES.rule(*every(_name))(without_arguments(*_pair))


@RULES.rule(*every("relu"))
def relu(x: Gaussian, inplace: bool = False) -> Gaussian:
    floor = current().relu_floor
    if current().activation == "taylor":
        return Gaussian.trusted(*taylor_moments(torch.relu, x.mean, x.var.clamp(min=floor) if floor else x.var))
    deviation = x.deviation if x.deviation is not None and x.deviation.var is x.var else None
    if x.shared is not None and current().spatial == "shared_weights":
        mean, var, some = beside(x.mean, x.var, x.shared)
        out = Gaussian.trusted(*relu_moments(mean, var, floor, deviation))
        out.shared, rows = through_relu(x.shared, *some, floor)
        out.picked = Picked(out.mean, rows)
    else:
        out = Gaussian.trusted(*relu_moments(x.mean, x.var, floor, deviation))
    if is_fused():
        out.before = x.mean, x.var, floor, deviation
    return out


@RULES.rule(*every("leaky_relu"))
def leaky_relu(x: Gaussian, negative_slope: float = 0.01, inplace: bool = False) -> Gaussian:
    moments = partial(piecewise.kink, above=1.0, below=float(negative_slope))
    return _answer(x, lambda z: F.leaky_relu(z, negative_slope), moments)


@RULES.rule(*every("prelu"))
def prelu(x: Gaussian, weight: Tensor) -> Gaussian:
    """One slope for all, or one for each channel of dimension 1; the slopes are known, not random."""
    if not isinstance(weight, Tensor):
        raise TypeError(f"prelu: weight must be a tensor, got {type(weight).__name__}; pass a Gaussian's mean")

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        slope = weight.to(var.dtype)
        channels = mean.shape[1] if mean.dim() > 1 else 1
        if slope.numel() not in (1, channels):
            raise ValueError(
                f"prelu: weight has {slope.numel()} slopes for {channels} channels; give 1 or one for each"
            )
        slope = slope.reshape(()) if slope.numel() == 1 else slope.view(1, -1, *[1] * (mean.dim() - 2))
        return piecewise.kink(mean, var, torch.ones_like(slope), slope)

    return _answer(x, lambda z: torch.prelu(z, weight.to(z.dtype)), moments)


@RULES.rule(*every("rrelu"))
def rrelu(
    x: Gaussian, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Gaussian:
    """In training the slope is another independent random variable, whose variance counts."""
    moments: Moments = partial(piecewise.kink, above=1.0, below=0.5 * (lower + upper))
    if training:
        moments = partial(piecewise.random_kink, lowest=lower, highest=upper)
    out = _answer(x, lambda z: F.leaky_relu(z, 0.5 * (lower + upper)), moments)
    if training and current().activation == "taylor":  # the slope is not an argument of the function above
        below = widened(x.mean).clamp(max=0)
        return Gaussian.trusted(out.mean, out.var + (upper - lower) ** 2 / 12 * below.square())
    return out


_OUT_OF_REACH = 1e18  # in float32 the squares of larger bounds overflow, infinite ones among them


@RULES.rule(*every("clamp", "clip"))
def clamp(x: Gaussian, min: Bound = None, max: Bound = None, *, out: None = None) -> Gaussian:
    for name, bound in (("min", min), ("max", max)):
        if isinstance(bound, Gaussian):
            raise TypeError(f"clamp: {name} must be a number or a tensor, got a Gaussian; see torch.maximum")
    if min is None and max is None:
        raise ValueError("clamp: min=None and max=None leave nothing to do; give at least one of them")
    if any(isinstance(bound, Tensor) and bound.dtype == torch.float64 for bound in (min, max)):
        x = x.double()  # as torch does
    return _answer(x, partial(torch.clamp, min=min, max=max), lambda mean, var: _clamp(mean, var, min, max))


def _clamp(mean: Tensor, var: Tensor, low: Bound, high: Bound) -> tuple[Tensor, Tensor]:
    if not isinstance(low, Tensor) and low is not None and low <= -_OUT_OF_REACH:
        low = None
    if not isinstance(high, Tensor) and high is not None and high >= _OUT_OF_REACH:
        high = None
    if low is None and high is None:
        return mean, var
    if low is not None and high is not None:
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            bounds = (torch.as_tensor(bound, dtype=var.dtype, device=var.device) for bound in (low, high))
            low, high = (bound.clamp(-_OUT_OF_REACH, _OUT_OF_REACH) for bound in bounds)
            return piecewise.ramp(mean, var, torch.minimum(low, high), high)
        return piecewise.ramp(mean, var, low=float(min(low, high)), high=float(high))  # torch lets max win
    if low is not None:
        return _at_least(mean, var, low)
    assert high is not None
    expectation, variance = _at_least(-mean, var, -high)
    return -expectation, variance


def _at_least(mean: Tensor, var: Tensor, low: float | Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(low, Tensor):
        return piecewise.at_least(mean, var, low.to(var.dtype))
    return piecewise.at_least(mean, var, low=float(low))


@RULES.rule(*every("clamp_min"))
def clamp_min(x: Gaussian, min: float | Tensor) -> Gaussian:
    return clamp(x, min)


@RULES.rule(*every("clamp_max"))
def clamp_max(x: Gaussian, max: float | Tensor) -> Gaussian:
    return clamp(x, None, max)


@RULES.rule(*every("hardtanh"))
def hardtanh(x: Gaussian, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Gaussian:
    return clamp(x, min_val, max_val)


@RULES.rule(*every("hardsigmoid"))
def hardsigmoid(x: Gaussian, inplace: bool = False) -> Gaussian:
    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        expectation, variance = piecewise.ramp(mean, var, low=-3.0, high=3.0)
        return (expectation + 3) / 6, variance / 36

    # torch's own has no second derivative, which the first-order rule needs in its backward pass
    return _answer(x, lambda z: torch.clamp(z + 3, 0, 6) / 6, moments)


@RULES.rule(*every("softshrink"))
def softshrink(x: Gaussian, lambd: float = 0.5) -> Gaussian:
    moments = partial(piecewise.ramp, low=-float(lambd), high=float(lambd), outer=1.0, inner=0.0)
    return _answer(x, lambda z: F.softshrink(z, lambd), moments)


@RULES.rule(*every("hardshrink"))
def hardshrink(x: Gaussian, lambd: float = 0.5) -> Gaussian:
    return _answer(x, lambda z: F.hardshrink(z, lambd), partial(piecewise.hardshrink, lambd=float(lambd)))


@RULES.rule(*every("threshold"))
def threshold(x: Gaussian, threshold: float, value: float, inplace: bool = False) -> Gaussian:
    moments = partial(piecewise.threshold, threshold=float(threshold), value=float(value))
    return _answer(x, lambda z: F.threshold(z, threshold, value), moments)


@RULES.rule(*every("elu"))
def elu(x: Gaussian, alpha: float = 1.0, inplace: bool = False) -> Gaussian:
    return _answer(x, lambda z: F.elu(z, alpha), partial(elu_moments.elu, depth=float(alpha)))


@RULES.rule(*every("celu"))
def celu(x: Gaussian, alpha: float = 1.0, inplace: bool = False) -> Gaussian:
    return _answer(x, lambda z: F.celu(z, alpha), partial(elu_moments.elu, depth=float(alpha), rate=1 / alpha))


@RULES.rule(*every("gelu"))
def gelu(x: Gaussian, *, approximate: str = "none") -> Gaussian:
    moments = rectifiers.gelu_tanh if approximate == "tanh" else gelu_moments.gelu
    return _answer(x, lambda z: F.gelu(z, approximate=approximate), moments)


@RULES.rule(*every("erfc"))
def erfc(x: Gaussian, *, out: None = None) -> Gaussian:
    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        expectation, variance = gelu_moments.erf(mean, var)
        return 1 - expectation, variance

    return _answer(x, torch.erfc, moments)


@RULES.rule(*every("softplus"))
def softplus(x: Gaussian, beta: float = 1.0, threshold: float = 20.0) -> Gaussian:
    if threshold < _SOFTPLUS_THRESHOLD:
        by_quadrature: Gaussian = _softplus_by_quadrature(x, beta, threshold)
        return by_quadrature

    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        expectation, variance = _chosen(rectifiers.softplus)(beta * mean, beta * beta * var)
        return expectation / beta, variance / (beta * beta)

    return _answer(x, lambda z: F.softplus(z, beta, threshold), moments)


_softplus_by_quadrature = elementwise(F.softplus)


@RULES.rule(*every("logsigmoid", "log_sigmoid"))
def logsigmoid(x: Gaussian) -> Gaussian:
    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        expectation, variance = _chosen(rectifiers.softplus)(-mean, var)
        return -expectation, variance

    return _answer(x, F.logsigmoid, moments)


@RULES.rule(*every("pow"), Tensor.__pow__)
def pow(x: Gaussian, exponent: Any, *, out: None = None) -> Gaussian:
    """Exact for whole positive exponents. Other powers, and exponents in a tensor, read the Gaussian as a positive
    variable: see :mod:`mnvi.moments.positive`."""
    if isinstance(exponent, Gaussian):
        raise NoRuleError(RULES.explain(Tensor.__rpow__))
    if not isinstance(exponent, Tensor):
        check_number("pow: exponent", exponent)
    moments: Moments = partial(positive.power, exponent=exponent)
    if not isinstance(exponent, Tensor) and exponent >= 1 and exponent == int(exponent):
        moments = partial(transcendental.power, exponent=int(exponent))
    return _answer(x, lambda z: torch.pow(z, exponent), moments)


@RULES.rule(*every("glu"))
def glu(x: Gaussian, dim: int = -1) -> Gaussian:
    """The product of one half and the sigmoid of the other half, which is independent of it, as all entries are.

    Exact except for the sigmoid: for means up to 3 in size and variances up to 4 the mean is off by less than 10⁻⁶ and
    the standard deviation by 0.002 %; for means up to 6 the standard deviation is off by 0.2 %.
    """
    value, gate = x.chunk(2, dim)
    product: Gaussian = value * torch.sigmoid(gate)
    return product


let_dynamo_dispatch(F.hardsigmoid, F.hardswish, F.sigmoid, F.tanh)
