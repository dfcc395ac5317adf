"""``x.mean(dim)`` in a model's own code, where ``x`` may be a ``Gaussian``.

``mean`` and ``var`` are a Gaussian's tensors, and a tensor's methods. A model that averages with ``x.mean((2, 3))``
would call the tensor. So :func:`mnvi.convert` gives such modules a subclass of their class in which those calls ask the
value first; for everything that is not a ``Gaussian`` they mean what they meant.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn

from mnvi.gaussian import RULES, Gaussian

_NAMES = ("mean", "var", "std")
_MADE: dict[type[nn.Module], type[nn.Module]] = {}


def call_method(value: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """``value.name(*args, **kwargs)``, with a ``Gaussian`` answered by the rule for that tensor method.

    Example:
        >>> import torch, mnvi
        >>> call_method(mnvi.Gaussian(torch.zeros(2, 4), torch.ones(2, 4)), "mean", 1).var
        tensor([0.2500, 0.2500])
    """
    if isinstance(value, Gaussian):
        return RULES.answer(getattr(torch.Tensor, name), (value, *args), kwargs)
    return getattr(value, name)(*args, **kwargs)


def with_mean_calls(cls: type[nn.Module]) -> type[nn.Module]:
    """The class itself, or the subclass for it where its methods make such calls.

    Example:
        >>> import torch
        >>> with_mean_calls(torch.nn.Linear) is torch.nn.Linear
        True
    """
    if cls not in _MADE:
        _MADE[cls] = _subclass(cls)
    return _MADE[cls]


def _subclass(cls: type[nn.Module]) -> type[nn.Module]:
    rewritten: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("torch.nn.") or base.__module__.startswith("mnvi."):
            continue
        for name, function in vars(base).items():
            if name not in rewritten and isinstance(function, FunctionType) and _calls_by_name(function):
                rewritten[name] = _rewrite(function)
    if not rewritten:
        return cls
    namespace = {**rewritten, "__module__": cls.__module__, "__doc__": cls.__doc__, "__reduce_ex__": _reduce}
    return type(cls.__name__, (cls,), {**namespace, "_written_class": cls})


def _calls_by_name(function: FunctionType) -> bool:
    return any(name in function.__code__.co_names for name in _NAMES)


class _AskTheValue(ast.NodeTransformer):
    """``x.mean(…)`` becomes ``_call_method(x, "mean", …)``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _NAMES:
            target, name = node.func.value, ast.Constant(node.func.attr)
            node = ast.Call(ast.Name("_call_method", ast.Load()), [target, name, *node.args], node.keywords)
        return node


def _rewrite(function: FunctionType) -> Callable:
    """The function with its calls changed; line numbers and free variables (``super()``) stay."""
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError as error:
        raise ValueError(
            f"convert: {function.__qualname__} calls .mean() or .var() on a value and its source cannot be read, so "
            "the call cannot be told from a Gaussian's own mean; use torch.mean(x, dim) there"
        ) from error
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = cast(ast.FunctionDef, _AskTheValue().visit(tree).body[0])
    definition.decorator_list = []
    free = function.__code__.co_freevars
    maker = ast.parse(f"def _make({', '.join(free)}):\n    return {definition.name}")
    cast(ast.FunctionDef, maker.body[0]).body.insert(0, definition)
    ast.increment_lineno(definition, first - 1)
    namespace = {**function.__globals__, "_call_method": call_method}
    code = compile(ast.fix_missing_locations(maker), inspect.getfile(function), "exec")
    exec(code, namespace)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    made = namespace["_make"](*cells)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    made.__qualname__, made.__doc__ = function.__qualname__, function.__doc__
    return cast(Callable, made)


def _reduce(self: nn.Module, protocol: int) -> tuple:
    """Pickles and copies name the class as it was written; the subclass is made again from it."""
    return _blank, (vars(type(self))["_written_class"],), self.__getstate__()


def _blank(cls: type[nn.Module]) -> nn.Module:
    adapted = with_mean_calls(cls)
    return adapted.__new__(adapted)
