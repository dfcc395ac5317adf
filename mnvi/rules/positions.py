"""Rules for :attr:`mnvi.Gaussian.shared`, the covariance between positions; ``mnvi.options(spatial="shared_weights")``.

An ordinary rule makes its result from means and variances and so loses ``shared``. After it, the table here adds the
covariance of the result, and corrects the variance of sums over positions. A function without an entry falls back to
independent positions and is reported by :func:`mnvi.rules.fallbacks.fell_back`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments import position_slopes, position_weights, positions
from mnvi.moments._torch import NATIVE_FUNCTIONS, is_compiling
from mnvi.moments.affine import Affine
from mnvi.moments.normal import SMALLEST_VARIANCE
from mnvi.moments.position_rows import position_dims, some_positions
from mnvi.moments.precision import widened
from mnvi.rules.fallbacks import fell_back
from mnvi.rules.known_weights import CONVOLUTIONS
from mnvi.rules.operands import named_dims
from mnvi.rules.options import current
from mnvi.rules.table import RULES, RuleTable, every, name_of
from mnvi.values.gaussian import Gaussian

Rule = Callable[[Gaussian, Callable, tuple, dict[str, Any]], Gaussian]

SHARED = RuleTable("Gaussian", "SHARED.rule")
"""What a call's result, the rule that made it, and the call's arguments give: the result with its covariance."""


def carry(function: Callable, handler: Callable, result: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of a rule, with ``shared`` if an argument has it and the function has a rule for it."""
    if not any(x.shared is not None for x in _gaussians(args, kwargs)):
        return result
    if isinstance(result, Gaussian) and result.shared is not None:  # mnvi.rules.dependence knows more than a rule
        return result
    rule = SHARED.find(function)
    if rule is not None:
        result = rule(result, handler, args, kwargs)
    if (
        not is_compiling()
        and isinstance(result, Gaussian)
        and result.shared is None
        and math.prod(result.shape[2:]) > 1
    ):
        fell_back(name_of(function))
    return result


def _gaussians(args: tuple, kwargs: dict[str, Any]) -> list[Gaussian]:
    values = [*args, *kwargs.values()]
    for value in args[:1]:
        if isinstance(value, tuple | list):  # torch.cat
            values += value
    return [value for value in values if isinstance(value, Gaussian)]


def input_of(args: tuple, kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs["input"]


def with_shared(value: Gaussian, shared: Tensor | None) -> Gaussian:
    """The value with this covariance, unless it has a single position or the shapes do not fit."""
    if shared is None or shared.dim() != value.dim() or not position_dims(value.shape, shared):
        return value
    return _replaced(value, value.var, shared)


def _replaced(value: Gaussian, var: Tensor, shared: Tensor | None = None) -> Gaussian:
    out = Gaussian.trusted(value.mean, var, shared)
    out.before = value.before
    if value.origin is not None:
        value.origin.belongs_to(out)
    return out


def _keep(result: Any, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """For maxima and the like, whose positions are those of the input or fewer."""
    if isinstance(result, tuple):  # with indices
        return (_keep(result[0], handler, args, kwargs), *result[1:])
    return with_shared(result, input_of(args, kwargs).shared)


def _elementwise(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    x, *rest = args
    if not isinstance(x, Gaussian) or x.shared is None or result.shape != x.shape:
        return result
    mean, var, here = x.mean, x.var, result.mean
    if not any(isinstance(value, Tensor) and value.dim() > 1 for value in (*rest, *kwargs.values())):
        mean, var, here = (some_positions(t, x.shared) for t in (mean, var, here))

    def expectation(shifted: Tensor) -> Tensor:
        return cast(Tensor, handler(Gaussian.trusted(shifted, var), *rest, **kwargs).mean)

    derivatives = position_slopes.slope_and_curvature(expectation, mean, var, here)
    return with_shared(result, position_slopes.through_slope(x.shared, mean, var, *derivatives))


def of_a_function(result: Gaussian, function: Callable[[Gaussian], Gaussian], x: Gaussian | None) -> Gaussian:
    """The result of an elementwise function of one value, with its covariance if the value has one."""
    return result if x is None else _elementwise(result, function, (x,), {})


def _scaled(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    """For maps that scale each channel: the covariance grows as the variance does."""
    x = input_of(args, kwargs)
    return with_shared(result, x.shared * _growth(x, result))


def _batch_norm(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    given = dict(zip(("input", "running_mean", "running_var", "weight", "bias", "training"), args, strict=False))
    given.update(kwargs)
    x = given["input"]
    if given.get("training") or given.get("running_var") is None:
        return _scaled(result, handler, (x,), {})
    variance = widened(given["running_var"]) + given.get("eps", args[7] if len(args) > 7 else 1e-5)
    scale = 1 / variance if given.get("weight") is None else widened(given["weight"]).square() / variance
    return with_shared(result, x.shared * scale.view(-1, *[1] * (x.dim() - 2)))


def _growth(x: Gaussian, result: Gaussian) -> Tensor:
    assert x.shared is not None
    before, after = (positions.over_positions(some_positions(v, x.shared), x.shared) for v in (x.var, result.var))
    return after / before.clamp(min=SMALLEST_VARIANCE)


def _average(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    x, *rest = args
    sizes = [size if shared == 1 else 1 for size, shared in zip(x.shape, x.shared.shape, strict=True)]
    if any(a == b for a, b in zip(result.shape, x.shape, strict=True)) and not _pools_positions_alone(x, result):
        return result
    ones = torch.ones(sizes, dtype=x.var.dtype, device=x.device)
    weights = handler(Gaussian.trusted(ones, ones), *rest, **kwargs)
    correlation = positions.correlation(x.var, x.shared)
    var = positions.of_a_sum(result.var, weights.mean, weights.var, correlation)
    return with_shared(_replaced(result, var), x.shared)


def _pools_positions_alone(x: Gaussian, result: Gaussian) -> bool:
    assert x.shared is not None
    dims = position_dims(x.shape, x.shared)
    return all(size == result.shape[d] or d in dims for d, size in enumerate(x.shape))


def _mean_or_sum(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    x = input_of(args, kwargs)
    dims, keepdim = _reduced(x, *args[1:], **kwargs)
    summed = [d for d in position_dims(x.shape, x.shared) if d in dims]
    others = [d for d in dims if d not in summed]
    total, shared = x, x.shared
    if summed:
        sizes = [size if shared.shape[d] == 1 else 1 for d, size in enumerate(x.shape)]
        ones = torch.ones(sizes, dtype=x.var.dtype, device=x.device)
        weights = handler(Gaussian.trusted(ones, ones), summed, True)
        total = handler(Gaussian.trusted(x.mean, x.var), summed, True)
        var = positions.of_a_sum(total.var, weights.mean, weights.var, positions.correlation(x.var, shared))
        total = Gaussian.trusted(total.mean, var)
    if others:
        total = handler(Gaussian.trusted(total.mean, total.var), others, True)
        shared = handler(Gaussian.trusted(shared, shared), others, True).var
    if not keepdim:
        kept = [d for d in range(x.dim()) if d not in dims]
        shared = shared.reshape([shared.shape[d] for d in kept])
    return with_shared(_replaced(result, total.var.reshape(result.shape)), shared)


def _reduced(
    x: Gaussian, dim: Any = None, keepdim: bool = False, *, axis: Any = None, keepdims: bool = False, **_: Any
) -> tuple[list[int], bool]:
    dim = axis if dim is None else dim
    return [d % x.dim() for d in named_dims(dim, x.dim())], keepdim or keepdims


def _shared_of(value: Any, like: Gaussian) -> Any:
    """Covariance between positions of an operand; of one that is repeated at all positions, its variance."""
    if not isinstance(value, Gaussian):
        return 0.0
    if value.shared is not None:
        return value.shared
    assert like.shared is not None
    dims = position_dims(like.shape, like.shared)
    aligned = (1,) * (like.dim() - value.dim()) + tuple(value.shape)
    return value.var if all(aligned[d] == 1 for d in dims) else 0.0


def carrier(*values: Any) -> Gaussian:
    return next(value for value in values if isinstance(value, Gaussian) and value.shared is not None)


def _add(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    first, second = args[0], args[1] if len(args) > 1 else kwargs["other"]
    factor = kwargs.get("alpha", 1)
    x = carrier(first, second)
    if first is second:
        return with_shared(result, first.shared * (1 + factor) ** 2)
    shared = _shared_of(first, x) + factor * factor * _shared_of(second, x)
    return with_shared(result, shared)


def _mul(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    first, second = args[0], args[1] if len(args) > 1 else kwargs["other"]
    x = carrier(first, second)
    y = second if x is first else first
    if x is y:
        return _elementwise(result, lambda z: handler(z, z), args[:1], {})
    if isinstance(y, Gaussian) and x.shape == result.shape:
        assert x.shared is not None
        squares = [_over_pairs(value, x) for value in (x, y)]
        shared = positions.product((squares[0], x.shared), (squares[1], _shared_of(y, x)))
        return with_shared(result, shared)
    if isinstance(y, Tensor) and y.numel() > 1:
        return _scaled(result, handler, (x,), {}) if x.shape == result.shape else result
    assert x.shared is not None
    return with_shared(result, x.shared * (y * y))


def _div(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    first, second = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if isinstance(second, Gaussian):
        return result
    return _mul(result, handler, (first, 1 / second), {})


def _over_pairs(value: Gaussian, like: Gaussian) -> Tensor:
    """Mean over pairs of positions of the product of their means."""
    assert like.shared is not None
    mean = widened(value.mean)
    aligned = mean.reshape((1,) * (like.dim() - mean.dim()) + tuple(mean.shape))
    return positions.mean_product(aligned, like.shared) if aligned.shape == like.shape else aligned.square()


def _normalised(statistics: Callable[..., tuple[Tensor, int, bool]]) -> Rule:
    """For norms: ``statistics`` gives the mean c and number of the channels normalised together, and whether positions
    are normalised together too."""

    def rule(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
        x = input_of(args, kwargs)
        shared, count, over_positions = statistics(x, *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})
        common = (shared - 2 * x.shared) / count  # what subtracting the mean of all removes
        if over_positions:
            x = Gaussian.trusted(x.mean, (x.var + common).clamp(min=0), x.shared)
            result = _replaced(result, handler(x, *args[1:], **kwargs).var)
        return with_shared(result, _growth(x, result) * (x.shared + common))

    return rule


def _in_layers(x: Gaussian, normalized_shape: Sequence[int], *_: Any, **__: Any) -> tuple[Tensor, int, bool]:
    assert x.shared is not None
    dims = range(x.dim() - len(normalized_shape), x.dim())
    count = math.prod([x.shared.shape[d] for d in dims])
    together = any(d in dims for d in position_dims(x.shape, x.shared))
    return x.shared.mean(tuple(dims), keepdim=True), count, together


def _in_groups(x: Gaussian, num_groups: int, *_: Any, **__: Any) -> tuple[Tensor, int, bool]:
    assert x.shared is not None
    size = x.shape[1] // num_groups
    means = x.shared.unflatten(1, (num_groups, size)).mean(2, keepdim=True)
    return means.expand(-1, -1, size, *means.shape[3:]).flatten(1, 2), size, True


def _in_instances(x: Gaussian, *_: Any, **__: Any) -> tuple[Tensor, int, bool]:
    assert x.shared is not None
    return x.shared, 1, True


def _whole_channels(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    """Dropout of channels: positions drop out together."""
    x = input_of(args, kwargs)
    if result is x or current().dropout == "sample":
        return result if result is x else _scaled(result, handler, args, kwargs)
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    mean = positions.over_positions(widened(x.mean), x.shared)
    return with_shared(result, (x.shared + p * mean.square()) / (1 - p) if p < 1 else x.shared * 0)


def _matmul(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    """Attention weights times values, whose positions are summed over; tokens times a known matrix."""
    first, second = args
    if isinstance(second, Gaussian) and second.shared is not None and second.shared.shape[-2] == 1:
        weights = first.mean if isinstance(first, Gaussian) else first
        var, shared = positions.weighted(widened(weights), second.var, second.shared)
        return with_shared(_replaced(result, result.var + var), shared)
    if isinstance(second, Tensor) and first.shared.shape[-1] != 1:
        return with_shared(result, torch.matmul(first.shared, second.to(first.shared.dtype).square()))
    return result


def _linear(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
    x, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
    if x.shared.shape[-1] == 1:
        return result
    return with_shared(result, F.linear(x.shared, weight.to(x.shared.dtype).square()))


def _convolution(*names: str) -> Rule:
    """For convolutions with known weights, whose arguments have these names after input, weight and bias."""

    def rule(result: Gaussian, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Gaussian:
        given = {**dict(zip(("input", "weight", "bias", *names), args, strict=False)), **kwargs}
        x, weight = given["input"], given["weight"]
        affine = _geometry(given, weight.shape[2:], transposed="output_padding" in names)
        dims = position_weights.layer_positions(affine, x.dim())
        if any(x.shared.shape[d] != 1 for d in dims):
            return result
        sums = position_weights.tap_sums(affine, x.shape, result.shape, weight, torch.zeros_like(weight))
        through = position_weights.through_weights(affine, x.mean, x.var, x.shared, sums, None, result.shape)
        grown = result.var if through.growth is None else position_weights.grow(result.var, through.growth)
        return with_shared(_replaced(result, grown), through.shared)

    return rule


def _geometry(given: dict[str, Any], kernel: Sequence[int], transposed: bool) -> Affine:
    def sizes(name: str, default: int) -> tuple[int, ...]:
        value = given.get(name, default)
        return (value,) * len(kernel) if isinstance(value, int) else tuple(value) * (len(kernel) // len(value))

    dilation, padding = sizes("dilation", 1), given.get("padding", 0)
    if isinstance(padding, str):  # only what comes before the input counts; what follows shows in the output's size
        same = tuple(step * (size - 1) // 2 for step, size in zip(dilation, kernel, strict=True))
        given = {**given, "padding": same if padding == "same" else 0}
    spare = sizes("output_padding", 0)
    return Affine(sizes("stride", 1), sizes("padding", 0), dilation, transposed, spare, given.get("groups", 1))


def register(rule: Rule, *functions: Callable) -> None:
    SHARED.rule(*functions)(rule)


_ELEMENTWISE = """
    relu relu6 abs absolute hardswish selu sigmoid expit tanh tanhshrink silu mish softsign erf ndtr exp expm1 sin cos
    leaky_relu prelu rrelu clamp clip clamp_min clamp_max hardtanh hardsigmoid softshrink hardshrink threshold elu celu
    gelu erfc softplus logsigmoid log_sigmoid pow square
"""
for _name in _ELEMENTWISE.split():
    register(_elementwise, *every(_name))
register(_batch_norm, F.batch_norm)
register(_scaled, torch.batch_norm, F.rms_norm, torch.rms_norm)
register(_normalised(_in_layers), F.layer_norm, torch.layer_norm)
register(_normalised(_in_groups), F.group_norm, torch.group_norm)
register(_normalised(_in_instances), F.instance_norm)
register(_matmul, *every("matmul"), Tensor.__matmul__)
register(_linear, F.linear)
for _function in CONVOLUTIONS:
    _last = ["dilation", "groups"]
    if "transpose" in _function.__name__:
        _last = ["output_padding", "groups", "dilation"]
    register(_convolution("stride", "padding", *_last), _function)
register(_mean_or_sum, *every("mean", "sum"))
register(_add, *every("add", "sub", "subtract"))
register(_keep, *every("neg", "negative"))
register(_mul, *every("mul", "multiply"))
register(_div, *every("div", "divide", "true_divide"), Tensor.__truediv__)
_POOLING = {
    _keep: ("max_pool{}d", "max_pool{}d_with_indices", "adaptive_max_pool{}d", "adaptive_max_pool{}d_with_indices"),
    _average: ("avg_pool{}d", "adaptive_avg_pool{}d"),
}
for _rule, _names in _POOLING.items():
    for _name in [name.format(dims) for name in _names for dims in (1, 2, 3)]:
        register(_rule, *(getattr(space, _name) for space in (F, torch, NATIVE_FUNCTIONS) if hasattr(space, _name)))
register(_average, F.interpolate)
register(_keep, F.dropout, torch.dropout)
register(_whole_channels, F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout)

RULES.afterwards = carry
