"""Tells whether modules compute the same, apart from the values of their parameters and buffers.

>>> import torch
>>> a, b, c = torch.nn.Dropout(0.1), torch.nn.Dropout(0.1), torch.nn.Dropout(0.2)
>>> described(a) == described(b), described(a) == described(c)
(True, False)
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mnvi.moments._torch import OpOverload, OpOverloadPacket

Ignored = Mapping[type, Iterable[str]]
_NUMBERS = {bool, int, float, complex}
_OPERATIONS = {OpOverload, OpOverloadPacket}
_AS_THEY_ARE = {type(None), str, bytes, BuiltinFunctionType, CodeType, ModuleType} | _OPERATIONS
_OF_EVERY_CLASS = ("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl")


def described(module: nn.Module, ignored: Ignored | None = None) -> Hashable:
    """A description that is equal for modules built alike.

    The module's parameters and buffers count with shape and type. Everything else within reach counts with its value:
    other tensors, numbers, functions with their closures, objects with their attributes. An object without visible
    content, such as an open file, equals only itself.

    Args:
        module: any module.
        ignored: attribute names that do not count, by the class of their owner.

    Example:
        >>> import torch
        >>> described(torch.nn.Linear(3, 2)) == described(torch.nn.Linear(3, 2))
        True
        >>> described(torch.nn.Linear(3, 2)) == described(torch.nn.Linear(3, 4))
        False
        >>> but_p = {torch.nn.Dropout: ["p"]}
        >>> described(torch.nn.Dropout(0.1), but_p) == described(torch.nn.Dropout(0.2), but_p)
        True
    """
    return _Walk(module, ignored or {}).of(module)


class _Walk:
    """A walk through everything that a module holds; an object met again is named by the time of its first visit."""

    def __init__(self, module: nn.Module, ignored: Ignored) -> None:
        self.ignored = ignored
        self.own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        self.met: dict[int, int] = {}
        self.held: list[Any] = []  # Python reuses the id of a freed object

    def of(self, value: Any) -> Hashable:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind in _NUMBERS:
            return kind, repr(value)  # 1 equals 1.0 and True, but nan does not equal itself
        if kind in (tuple, torch.Size):
            return kind, self.each(value)
        if id(value) in self.met:
            return "met", self.met[id(value)]
        self.met[id(value)] = len(self.met)
        self.held.append(value)
        for kinds, describe in _HOW:
            if isinstance(value, kinds):
                return describe(self, value)
        return self.thing(value)

    def each(self, values: Iterable[Any]) -> tuple[Hashable, ...]:
        return tuple(map(self.of, values))

    def items(self, values: Mapping[Any, Any], without: Iterable[str] = ()) -> tuple[Hashable, ...]:
        return tuple((self.of(key), self.of(value)) for key, value in values.items() if key not in without)

    def module(self, module: nn.Module) -> Hashable:
        parts: list[Hashable] = [self.of(type(module))]
        without = self.without(module)
        for name, value in vars(module).items():
            if name in without:
                continue
            if name.startswith("_") and isinstance(value, dict) and "_hooks" in name:
                value = tuple(value.values())  # torch never gives the same key twice
            parts.append((name, self.of(value)))
        return tuple(parts)

    def tensor(self, tensor: Tensor) -> Hashable:
        form = type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad
        return form if id(tensor) in self.own else (form, _digest(tensor))

    def kind(self, kind: type) -> Hashable:
        """A class; one that a function makes anew in every call is compared by its contents."""
        if kind.__module__ == "builtins" or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind:
            return kind
        return kind.__qualname__, self.each(kind.__bases__), self.items(vars(kind), _OF_EVERY_CLASS)

    def function(self, function: FunctionType) -> Hashable:
        enclosed = self.each(map(_content, function.__closure__ or ()))
        defaults = self.each((function.__defaults__, function.__kwdefaults__))
        return function.__code__, enclosed, defaults, self.items(vars(function))

    def thing(self, value: Any) -> Hashable:
        kind = type(value)
        pickled = any("__reduce_ex__" in vars(base) or "__reduce__" in vars(base) for base in kind.__mro__[:-1])
        if not pickled and hasattr(value, "__dict__") and not any(vars(base).get("__slots__") for base in kind.__mro__):
            return self.of(kind), self.items(vars(value), self.without(value))
        try:
            written = value.__reduce_ex__(4)
        except Exception:  # whatever the error, the object cannot be examined
            return _Itself(value)
        if isinstance(written, str):  # its name in its module
            return _Itself(value)
        function, arguments, state, *entries = written
        return self.each((function, arguments, state, *(each and tuple(each) for each in entries[:2])))

    def without(self, owner: Any) -> set[str]:
        return {name for kind, names in self.ignored.items() if isinstance(owner, kind) for name in names}


class _Itself:
    """Equals only the same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name without a value yet
        return CellType


def _digest(tensor: Tensor) -> Hashable:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return _Itself(tensor)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return hashlib.sha256(plain.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


_HOW: tuple[tuple[Any, Callable[[_Walk, Any], Hashable]], ...] = (
    (nn.Module, _Walk.module),
    (Tensor, _Walk.tensor),
    (type, _Walk.kind),
    (FunctionType, _Walk.function),
    (MethodType, lambda walk, method: walk.each((method.__func__, method.__self__))),
    ((staticmethod, classmethod), lambda walk, method: walk.each((type(method), method.__func__))),
    (property, lambda walk, value: walk.each((property, value.fget, value.fset, value.fdel))),
    (weakref.ref, lambda walk, reference: ("to", walk.of(reference()))),
    (torch.Generator, lambda walk, generator: (torch.Generator, str(generator.device))),  # its state does not count
    (dict, lambda walk, value: (walk.of(type(value)), walk.items(value), walk.items(getattr(value, "__dict__", {})))),
    ((list, tuple), lambda walk, value: (walk.of(type(value)), walk.each(value))),
    ((set, frozenset), lambda walk, value: (walk.of(type(value)), frozenset(walk.each(value)))),
)
