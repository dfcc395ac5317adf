"""Dropout that stays active in evaluation: modules, attention, and calls of torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from mnvi.moments._torch import DropoutNd

_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_KNOWN = ("torch.nn.", "mnvi.")


def dropouts(net: nn.Module) -> Iterator[nn.Module]:
    """Modules whose only difference in training is that they drop something.

    Example:
        >>> import torch
        >>> [type(module).__name__ for module in dropouts(torch.nn.TransformerEncoderLayer(8, 2))][:3]
        ['TransformerEncoderLayer', 'MultiheadAttention', 'Dropout']
    """
    for module in net.modules():
        if isinstance(module, DropoutNd) and module.p > 0:
            yield module
        if isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
            yield module
        if isinstance(module, nn.TransformerEncoderLayer):  # in evaluation it takes a path without any dropout
            yield module


def calls_dropout(net: nn.Module) -> bool:
    """Whether a method of the network's own modules names one of torch's dropout functions.

    Example:
        >>> import torch
        >>> calls_dropout(torch.nn.Dropout())  # a module of torch's is found by its class
        False
    """
    written = {type(module) for module in net.modules() if not type(module).__module__.startswith(_KNOWN)}
    methods = [value for kind in written for base in kind.__mro__ for value in vars(base).values()]
    own = [method for method in methods if isinstance(method, FunctionType)]
    return any(_names_dropout(method.__code__) for method in own if not method.__module__.startswith(_KNOWN))


class Training(TorchFunctionMode):
    """Inside this context torch's dropout functions drop, whatever ``training`` they get.

    Example:
        >>> import torch
        >>> with Training():
        ...     torch.nn.functional.dropout(torch.ones(3), p=1.0, training=False)
        tensor([0., 0., 0.])
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DROPPING:
            args, kwargs["training"] = args[:2], True  # input and p
        return func(*args, **kwargs)


_DROPPING = [getattr(F, name) for name in _FUNCTIONS]


def _names_dropout(code: CodeType) -> bool:
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(name in code.co_names for name in _FUNCTIONS) or any(map(_names_dropout, nested))
