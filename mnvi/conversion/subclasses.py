"""The class with a posterior for a layer of any class: torch's, a subclass of one, or one of another package."""

from __future__ import annotations

import dis
import math
from collections.abc import Callable
from itertools import pairwise
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mnvi.conversion.mean_calls import with_mean_calls
from mnvi.layers.base import BayesianLayer
from mnvi.layers.computed import parametrized
from mnvi.layers.foreign import KNOWN
from mnvi.layers.registry import BAYESIAN

_COMPUTES = ("forward", "_conv_forward", "_output_padding")  # methods that torch's layers compute with
_HARMLESS = {"device", "dtype", "shape", "size", "dim", "is_cuda", "ndim"}  # what may be asked of a weight
_MADE: dict[type[nn.Module], type[BayesianLayer]] = {}


def is_layer(module: nn.Module) -> bool:
    """Whether a module is of a kind that can have a posterior, or has one already.

    An embedding that overrides ``forward``, such as a position table that returns a slice, does not count.
    """
    if isinstance(module, nn.Embedding) and not isinstance(module, BayesianLayer):
        return bayesian_class(parametrize.type_before_parametrizations(module)) is not None
    return isinstance(module, (*BAYESIAN, BayesianLayer)) or _full_name(type(module)) in KNOWN


def bayesian_class(cls: type[nn.Module]) -> type[BayesianLayer] | None:
    """The class with a posterior for layers of a class; None if it computes with its weight in an unknown way.

    A subclass of a known layer that changes inputs or outputs around ``super().forward`` keeps its ``forward``: in the
    class made here, ``super()`` is the layer with a posterior.

    Example:
        >>> import torch, mnvi
        >>> class Doubled(torch.nn.Linear):
        ...     def forward(self, input):
        ...         return 2 * super().forward(input)
        >>> [base.__name__ for base in bayesian_class(Doubled).__mro__[:3]]
        ['Doubled', 'Doubled', 'Linear']
        >>> class ByHand(torch.nn.Linear):
        ...     def forward(self, input):
        ...         return input @ self.weight.T
        >>> bayesian_class(ByHand) is None
        True
    """
    if cls in BAYESIAN:
        return BAYESIAN[cls]
    if cls in _MADE:
        return _MADE[cls]
    ancestor = next((kind for kind in cls.__mro__ if kind in BAYESIAN), None)
    if _full_name(cls) in KNOWN:
        bases: tuple[type, ...] = (KNOWN[_full_name(cls)], cls)
    elif ancestor is not None and _delegates(cls, ancestor):
        bases = (cls, BAYESIAN[ancestor])
    else:
        return None
    _MADE[cls] = type(cls.__name__, bases, {"__module__": cls.__module__, "__reduce_ex__": _reduce, "_made_from": cls})
    return _MADE[cls]


def make_bayesian(module: nn.Module) -> None:
    """Give a layer the class with a posterior, in place; the posterior itself is still to be adopted."""
    made = bayesian_class(parametrize.type_before_parametrizations(module))
    assert made is not None
    module.__class__ = parametrized(made) if parametrize.is_parametrized(module) else made


def behaviour_check(name: str, module: nn.Module) -> Callable[[nn.Module], None]:
    """A function that compares a layer with what it was before, if only the name of its class told what it computes.

    Args:
        name: the layer's name, for the error.
        module: the deterministic layer.
    """
    if type(module) in BAYESIAN or _full_name(type(module)) not in KNOWN or _on_meta(module):
        return lambda layer: None
    full_name, example = _full_name(type(module)), _example(module)
    with torch.no_grad():
        expected = module.forward(example)

    def check(layer: nn.Module) -> None:
        with torch.no_grad():
            out = layer.forward(example)
        mean = out if isinstance(out, Tensor) else out.mean
        close = mean.shape == expected.shape
        if not close or not torch.allclose(mean, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max())):
            raise ValueError(
                f"convert: layer {name!r} ({full_name}) computes something else than the version of its package that "
                f"this library knows; register its class with mnvi.register_layer, or skip={name!r}"
            )

    return check


def _full_name(cls: type[nn.Module]) -> str:
    return f"{cls.__module__}.{_as_written(cls).__qualname__}"


def _as_written(cls: type[nn.Module]) -> type[nn.Module]:
    """The class before :mod:`mnvi.conversion.mean_calls` rewrote it."""
    return vars(cls).get("_written_class", cls)


def _delegates(cls: type[nn.Module], ancestor: type[nn.Module]) -> bool:
    """Whether a subclass computes with its weight only through its ancestor's ``forward``."""
    for kind in cls.__mro__[: cls.__mro__.index(ancestor)]:
        own = vars(kind)
        if any(name in own for name in _COMPUTES[1:]):
            return False
        if "forward" in own and not _calls_super(own["forward"]):
            return False
    return True


def _calls_super(function: Any) -> bool:
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    instructions = list(dis.get_instructions(code))
    reads = [
        after.argval
        for load, after in pairwise(instructions)
        if load.opname in ("LOAD_ATTR", "LOAD_METHOD") and load.argval in ("weight", "bias")
    ]
    return {"super", "forward"} <= set(code.co_names) and all(name in _HARMLESS for name in reads)


def _reduce(self: nn.Module, protocol: int) -> tuple:
    """Pickles and copies name the original class; loading makes the class again."""
    return _blank, (_as_written(vars(type(self))["_made_from"]),), self.__getstate__()


def _blank(cls: type[nn.Module]) -> nn.Module:
    made = bayesian_class(with_mean_calls(cls))
    assert made is not None
    return made.__new__(made)


def _on_meta(module: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters())


def _example(module: Any) -> Tensor:
    """A small input without random numbers, so that conversion leaves torch's generator as it is."""
    weight = module.weight
    if weight.dim() == 2:
        shape: tuple[int, ...] = (2, weight.shape[1] if isinstance(module, nn.Linear) else weight.shape[0])
    else:
        sizes = [k * d + 4 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        shape = (2, module.in_channels, *sizes)
    entries = torch.arange(math.prod(shape), dtype=weight.dtype, device=weight.device)
    return torch.cos(entries).view(shape)
