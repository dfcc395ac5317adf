"""Notices modules that use the weight of a layer without calling it, past its posterior."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.overrides import TorchFunctionMode

from mnvi.layers.base import BayesianLayer
from mnvi.moments._torch import is_compiling, is_traced

_KNOWN = ("torch.nn.", "mnvi.")  # modules here call their layers
_QUESTIONS = {"__get__", "__repr__", "__len__", "size", "dim", "numel", "stride", "is_floating_point", "is_complex"}


class UnusedPosteriorWarning(UserWarning):
    """A module uses the weight of a layer without calling it; the message names the layer and the line.

    Example:
        >>> import warnings, mnvi
        >>> warnings.simplefilter("error", mnvi.UnusedPosteriorWarning)  # makes it an error
    """


def watch_weights(model: nn.Module) -> None:
    """Let the first forward pass of a converted model warn where its own code uses the weight of a layer.

    Models made only of torch's modules need no watch. A pass that torch traces or transforms does not count as the
    first one.

    Args:
        model: from :func:`mnvi.convert`.
    """
    if any(not type(module).__module__.startswith(_KNOWN) for module in model.modules()):
        model.register_forward_pre_hook(_begin)
        model.register_forward_hook(_end, always_call=True)


class _Watch(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, BayesianLayer)]
        weights = [(layer._parameters.get("weight"), name) for name, layer in layers]
        self.names = {id(weight): name for weight, name in weights if weight is not None}

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for value in (*args, *kwargs.values()):
            if id(value) in self.names and getattr(func, "__name__", "") not in _QUESTIONS:
                _warn(self.names[id(value)])
        return func(*args, **kwargs)


_WATCHES: WeakKeyDictionary[nn.Module, _Watch] = WeakKeyDictionary()


def _begin(module: nn.Module, args: Any) -> None:
    if is_traced() or module in _WATCHES:
        return
    _WATCHES[module] = _Watch(module)
    _WATCHES[module].__enter__()


def _end(module: nn.Module, args: Any, output: Any) -> None:
    if is_compiling():
        return
    watch = _WATCHES.pop(module, None)
    if watch is None:
        return
    watch.__exit__(None, None, None)
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if hook in (_begin, _end)]:
            del hooks[key]
            module._forward_hooks_always_called.pop(key, None)


def _warn(name: str) -> None:
    """Warn, unless the layer itself or the library uses the weight."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("torch.", __name__)):
        frame = frame.f_back
    if frame is None or str(frame.f_globals.get("__name__")).startswith("mnvi."):
        return
    if isinstance(frame.f_locals.get("self"), BayesianLayer):
        return
    place = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(
        f"layer {name!r}: its weight is used without a call of the layer, so its posterior has no effect there, while "
        f"its KL counts; call the layer, or leave it out with mnvi.convert(..., skip={name!r}) "
        f"({place[0]}, line {place[1]}, in {frame.f_code.co_name})",
        UnusedPosteriorWarning,
        *place,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
