"""Recognises well-known activations that a model writes out by hand, such as ``x * torch.sigmoid(x)``.

Two functions of one number that agree at many points are the same function, however they are written. The comparison
uses Python's numbers, so it also works where torch traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments.activations import piecewise
from mnvi.rules.activations import _answer
from mnvi.rules.steps import Path, Step
from mnvi.values.gaussian import Gaussian

_POINTS = (-7.3, -4.1, -2.9, -2.1, -1.3, -0.7, -0.2, 0.3, 0.9, 1.6, 2.4, 3.3, 4.6, 7.9)
_TOLERANCE = 1e-6  # constants are often written with seven digits
_QUICK = 1.702  # of QuickGELU, CLIP's approximation of GELU

Scalar = Callable[..., float]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float, beta: float = 1.0, threshold: float = 20.0) -> float:
    return x if beta * x > threshold else math.log1p(math.exp(beta * x)) / beta


def _clamp(x: float, min: float | None = None, max: float | None = None) -> float:
    x = x if min is None or x > min else min
    return x if max is None or x < max else max


_SCALARS: dict[str, Scalar] = {
    "add": lambda x, y, alpha=1: x + alpha * y,
    "sub": lambda x, y, alpha=1: x - alpha * y,
    "rsub": lambda x, y, alpha=1: y - alpha * x,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "square": lambda x: x * x,
    "pow": lambda x, y: x**y,
    "abs": abs,
    "maximum": max,
    "minimum": min,
    "relu": lambda x: max(x, 0.0),
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "hardtanh": lambda x, low=-1.0, high=1.0: min(max(x, low), high),
    "clamp": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min),
    "clamp_max": lambda x, max: _clamp(x, None, max),
    "leaky_relu": lambda x, slope=0.01: x if x > 0 else slope * x,
    "hardsigmoid": lambda x: min(max(x + 3, 0.0), 6.0) / 6,
    "sigmoid": _sigmoid,
    "tanh": math.tanh,
    "erf": math.erf,
    "erfc": math.erfc,
    "ndtr": lambda x: 0.5 * math.erfc(-x / math.sqrt(2)),
    "softplus": _softplus,
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
}
_SYNONYMS = {
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "negative": "neg",
    "absolute": "abs",
    "expit": "sigmoid",
    "clip": "clamp",
    "fmax": "maximum",
    "fmin": "minimum",
}
_GELU_TANH = math.sqrt(2 / math.pi)

# Name, the function of a number, and torch's own function of a Gaussian.
_ACTIVATIONS: tuple[tuple[Scalar, Callable[[Any], Any]], ...] = (
    (lambda x: x * _sigmoid(x), F.silu),
    (lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)), F.gelu),
    (
        lambda x: 0.5 * x * (1 + math.tanh(_GELU_TANH * (x + 0.044715 * x**3))),
        lambda g: F.gelu(g, approximate="tanh"),
    ),
    (lambda x: x * _sigmoid(_QUICK * x), lambda g: F.silu(g * _QUICK) / _QUICK),
    (lambda x: x * math.tanh(_softplus(x)), F.mish),
    (lambda x: x * min(max(x + 3, 0.0), 6.0) / 6, F.hardswish),
    (lambda x: x / (1 + abs(x)), F.softsign),
    (lambda x: x - math.tanh(x), F.tanhshrink),
    (lambda x: x * x, torch.square),
    (lambda x: x * x * x, lambda g: torch.pow(g, 3)),
    (_softplus, F.softplus),
    (_sigmoid, torch.sigmoid),
    (math.tanh, torch.tanh),
)
_VALUES = [[function(x) for x in _POINTS] for function, _ in _ACTIVATIONS]


def recognised(step: Step) -> Callable[[Gaussian], Gaussian] | None:
    """torch's own function of a Gaussian that does what a step does to every entry; None if none is known.

    Example:
        >>> import torch
        >>> from mnvi.rules.steps import KNOWN, Path, Step
        >>> sigmoid = Path((Step(KNOWN[torch.sigmoid], (Path(),)),))
        >>> recognised(Step(KNOWN[torch.mul], (Path(), sigmoid))) is torch.nn.functional.silu
        True
    """
    values = _evaluate(step, _POINTS)
    if values is None:
        return None
    for known, (_, function) in zip(_VALUES, _ACTIVATIONS, strict=True):
        factor = values[-1] / known[-1]
        if abs(factor - 1) <= _TOLERANCE and _equal(values, known):
            return function
        if _equal(values, [factor * value for value in known]):
            return partial(_scaled, function, factor)
    above, below = values[-1] / _POINTS[-1], values[0] / _POINTS[0]
    if _equal(values, [(above if x > 0 else below) * x for x in _POINTS]):
        return partial(_kink, above, below)
    return None


def slope_and_offset(path: Path) -> tuple[float, float] | None:
    """a and b of an affine function a·x + b; None if they are not numbers."""
    values = _evaluate(path, (0.0, 1.0))
    return None if values is None else (values[1] - values[0], values[0])


def keeps_its_sign(path: Path) -> bool:
    """Whether a function is positive, or negative, at all points of a wide range."""
    values = _evaluate(path, tuple(0.25 * k for k in range(-120, 121)))
    return values is not None and (min(values) > 0 or max(values) < 0)


def _scaled(function: Callable[[Any], Any], factor: float, g: Gaussian) -> Gaussian:
    scaled: Gaussian = function(g) * factor
    return scaled


def _kink(above: float, below: float, g: Gaussian) -> Gaussian:
    moments = partial(piecewise.kink, above=above, below=below)
    return _answer(g, lambda z: torch.where(z > 0, above * z, below * z), moments)


def _equal(values: list[float], others: list[float]) -> bool:
    return all(abs(a - b) <= _TOLERANCE * max(1.0, abs(b)) for a, b in zip(values, others, strict=True))


def _evaluate(what: Step | Path, points: tuple[float, ...]) -> list[float] | None:
    try:
        values = [_at(what, x) for x in points]
    except (ArithmeticError, ValueError, TypeError):
        return None
    return [value for value in values if value is not None] if None not in values else None


def _at(what: Any, x: float) -> float | None:
    """A function's value at a point; None if it is not a function of one number."""
    if isinstance(what, Path):
        value: float | None = x
        for step in what.steps:
            value = None if value is None else _at(step, value)
        return value
    if isinstance(what, Step):
        if what.known.moves:
            return _at(what.paths[0], x) if len(what.paths) == 1 else None
        name = _SYNONYMS.get(what.known.plain, what.known.plain)
        args = [_at(value, x) for value in what.args]
        kwargs = {key: _at(value, x) for key, value in what.kwargs.items()}
        if name not in _SCALARS or None in args or None in kwargs.values():
            return None
        result: float = _SCALARS[name](*args, **kwargs)
        return result
    if isinstance(what, Tensor):
        return float(what) if what.dim() == 0 and what.device.type == "cpu" else None
    return what if isinstance(what, int | float) else None
