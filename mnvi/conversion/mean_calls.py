"""Makes ``x.mean(dim)`` in a model's own code work when ``x`` is a ``Gaussian``.

``mean`` and ``var`` are tensors of a Gaussian, but methods of a tensor. A model that averages with ``x.mean((2, 3))``
would call the tensor. So :func:`mnvi.convert` gives such modules a subclass of their class in which these calls look at
the value first; for anything but a random value they do what they did before.

This reaches the methods of the class: plain, static and class methods, properties, functions nested inside them, and
methods under decorators that use ``functools.wraps``. It also reaches functions that a module holds as an attribute,
such as a lambda, and functions that these call by a global name, such as ``pool(x)``. It does not reach other functions
(``pooling.pool(x)``), nor a base class's method that an override calls through ``super()``: there the call fails, and
:func:`explain_mean_calls` adds the line and what to write.
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from mnvi.conversion.function_source import calls_method, definition, with_nested
from mnvi.layers.base import BayesianLayer
from mnvi.moments._torch import is_compiling
from mnvi.values.base import RandomValue

_NAMES = ("mean", "var", "std")
_CALL, _OLD, _NEW = "_mnvi_call_method", "_mnvi_old_", "_mnvi_new_"
_KNOWN = ("torch.nn.", "mnvi.layers", "mnvi.models")  # modules here make no such calls
_MADE: dict[type[nn.Module], type[nn.Module]] = {}
_FOREIGN = {"torch", "mnvi", "numpy", *sys.stdlib_module_names}  # their functions stay as they are
_CALLED: dict[FunctionType, FunctionType] = {}  # functions that others call, rewritten


def call_method(value: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """``value.name(*args, **kwargs)``; for a random value, its rule for that tensor method.

    Example:
        >>> import torch, mnvi
        >>> call_method(mnvi.Gaussian(torch.zeros(2, 4), torch.ones(2, 4)), "mean", 1).var
        tensor([0.2500, 0.2500])
    """
    if isinstance(value, RandomValue):
        return value._rules.answer(getattr(torch.Tensor, name), (value, *args), kwargs)
    return getattr(value, name)(*args, **kwargs)


def adapt_mean_calls(module: nn.Module) -> None:
    """Rewrite the calls in a module's methods, and in functions that it holds as attributes, in place.

    A rewritten function belongs to the module and cannot be pickled with it.

    Example:
        >>> import torch, mnvi
        >>> module = torch.nn.Identity()
        >>> module.average = lambda x: x.mean(1)
        >>> adapt_mean_calls(module)
        >>> module.average(mnvi.Gaussian(torch.zeros(2, 4), torch.ones(2, 4))).var
        tensor([0.2500, 0.2500])
    """
    module.__class__ = with_mean_calls(type(module))
    for name, value in vars(module).items():
        if isinstance(value, FunctionType):
            module.__dict__[name] = _adapt(value)


def explain_mean_calls(model: nn.Module) -> None:
    """Make a call of ``x.mean(dim)`` that was not rewritten fail with its line and what to write there.

    Python says "'Tensor' object is not callable", since a Gaussian's ``mean`` is a tensor. A hook that torch calls
    after ``forward``, whether or not it failed, completes the message. The model and every module with code of its own
    get one, except layers with a posterior, which fold only without hooks; models made only of torch's modules need
    none. Code outside of these modules, and ``net.forward(x)``, which skips hooks, keep Python's message.

    Example:
        >>> import torch, mnvi
        >>> def pool(x):
        ...     return x.mean(1)
        >>> class Net(torch.nn.Module):
        ...     def forward(self, x):
        ...         return pool(x)
        >>> net = Net()
        >>> explain_mean_calls(net)
        >>> try:
        ...     net(mnvi.Gaussian(torch.zeros(2, 4), torch.ones(2, 4)))
        ... except TypeError as error:
        ...     print(str(error).partition(" (")[0])
        x.mean(...) of a Gaussian is not a method: write torch.mean(x, ...)
    """
    own = [module for module in model.modules() if not type(module).__module__.startswith(_KNOWN)]
    hooked = [module for module in own if module is not model and not isinstance(module, BayesianLayer)]
    for module in [model, *hooked] if own else []:
        module.register_forward_hook(_complete_message, always_call=True)


def _complete_message(module: nn.Module, args: Any, output: Any) -> None:
    if is_compiling():  # the compiler traces hooks, and would stop at the next line
        return
    error = sys.exc_info()[1]
    if not isinstance(error, TypeError) or str(error) != "'Tensor' object is not callable":
        return
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return
    place = traceback.extract_tb(trace)[0]
    call = linecache.getline(place.filename, place.lineno or 0).encode()[place.colno : place.end_colno].decode()
    found = re.match(r"(.*)\.(mean|var|std)\(", call)
    if found is None and not any(name in trace.tb_frame.f_code.co_names for name in _NAMES):
        return
    name, method = found.groups() if found else ("x", "mean")
    error.args = (
        f"{name}.{method}(...) of a Gaussian is not a method: write torch.{method}({name}, ...) "
        f"({place.filename}, line {place.lineno}, in {place.name})",
    )


def with_mean_calls(cls: type[nn.Module]) -> type[nn.Module]:
    """The class itself, or its rewritten subclass if its methods make such calls.

    Example:
        >>> import torch
        >>> with_mean_calls(torch.nn.Linear) is torch.nn.Linear
        True
    """
    if cls not in _MADE:
        _MADE[cls] = _subclass(cls)
    return _MADE[cls]


def _subclass(cls: type[nn.Module]) -> type[nn.Module]:
    attributes: dict[str, Any] = {}
    for base in reversed(cls.__mro__):  # an override hides what it overrides
        written_for_tensors = not base.__module__.startswith(("torch.nn.", "mnvi."))
        attributes.update({name: value if written_for_tensors else None for name, value in vars(base).items()})
    adapted = {name: _adapt_attribute(value) for name, value in attributes.items()}
    rewritten = {name: value for name, value in adapted.items() if value is not attributes[name]}
    if not rewritten:
        return cls
    namespace = {**rewritten, "__module__": cls.__module__, "__doc__": cls.__doc__, "__reduce_ex__": _reduce}
    return type(cls.__name__, (cls,), {**namespace, "_written_class": cls})


def _adapt_attribute(attribute: Any) -> Any:
    """A class attribute with its calls rewritten; the attribute itself if it has none."""
    if isinstance(attribute, FunctionType):
        return _adapt(attribute)
    if type(attribute) in (staticmethod, classmethod):
        function = _adapt_attribute(attribute.__func__)
        return attribute if function is attribute.__func__ else type(attribute)(function)
    if type(attribute) is property:
        written = attribute.fget, attribute.fset, attribute.fdel
        fget, fset, fdel = adapted = [_adapt_attribute(function) for function in written]
        unchanged = all(new is old for new, old in zip(adapted, written, strict=True))
        return attribute if unchanged else property(fget, fset, fdel, attribute.__doc__)
    return attribute


def _adapt(function: FunctionType) -> FunctionType:
    """The function with its calls rewritten, including those of the function that it decorates.

    It shares globals and the cells of free variables (``super()``) with the original, so that it sees later definitions
    and replacements. A decorator stays: its wrapper calls the rewritten function. This needs a wrapper that holds
    ``__wrapped__`` as a free variable; other wrappers stay unchanged.
    """
    old = function.__code__
    cells = dict(zip(old.co_freevars, function.__closure__ or (), strict=True))
    called = _called(function)
    code = _rewrite(function, called)
    wrapped = inner = function.__dict__.get("__wrapped__")
    holding = [name for name, cell in cells.items() if wrapped is not None and _content(cell) is wrapped]
    if holding and isinstance(wrapped, FunctionType):
        inner = _adapt(wrapped)
    if code is old and inner is wrapped:
        return function
    cells |= {_CALL: CellType(call_method), **{name: CellType(inner) for name in holding}}
    for name, new in called.items():
        cells |= {_OLD + name: CellType(function.__globals__[name]), _NEW + name: CellType(new)}
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)
    del made.__dict__["__wrapped__"]
    if inner is not None:
        made.__dict__["__wrapped__"] = inner
    return made


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _called(function: FunctionType) -> dict[str, FunctionType]:
    """The functions to rewrite that a function calls by a global name: this name, and the function rewritten."""
    codes = list(with_nested(function.__code__))
    local = {name for code in codes for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)}
    found = {}
    for name in sorted({name for code in codes for name in code.co_names} - local):
        value = function.__globals__.get(name)
        if not isinstance(value, FunctionType) or (value.__module__ or "").partition(".")[0] in _FOREIGN:
            continue
        if value not in _CALLED:
            _CALLED[value] = value  # for functions that call each other in a circle
            with suppress(ValueError):  # its source cannot be read
                _CALLED[value] = _adapt(value)
        if _CALLED[value] is not value:
            found[name] = _CALLED[value]
    return found


class _AskTheValue(ast.NodeTransformer):
    """``x.mean(…)`` becomes ``_mnvi_call_method(x, "mean", …)``.

    ``pool(…)`` becomes ``(_mnvi_new_pool if pool is _mnvi_old_pool else pool)(…)``, so that a function that replaces
    ``pool`` later is called.
    """

    def __init__(self, called: Iterable[str]) -> None:
        self.called = set(called)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _NAMES:
            target, name = node.func.value, ast.Constant(node.func.attr)
            node = ast.Call(ast.Name(_CALL, ast.Load()), [target, name, *node.args], node.keywords)
        elif isinstance(node.func, ast.Name) and node.func.id in self.called:
            same, old, new = node.func, *(ast.Name(prefix + node.func.id, ast.Load()) for prefix in (_OLD, _NEW))
            node.func = ast.IfExp(ast.Compare(same, [ast.Is()], [old]), new, same)
        return node


def _rewrite(function: FunctionType, called: Iterable[str] = ()) -> CodeType:
    """The function's code with its calls rewritten, also those of functions by these names; line numbers stay."""
    old = function.__code__
    if not called and not any(name in code.co_names for code in with_nested(old) for name in _NAMES):
        return old
    written = definition(old)
    if written is None:
        if old.co_name != "<lambda>" and any(
            calls_method(code, _NAMES, function.__globals__) for code in with_nested(old)
        ):
            raise ValueError(
                f"convert: {function.__qualname__} calls .mean(), .var() or .std() on a value and its source cannot be "
                "read, so the call cannot be rewritten for a Gaussian; use torch.mean(x, dim) there"
            )
        return old
    arguments = written.args  # defaults and annotations come from the function
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    _AskTheValue(called).visit(written)
    body: ast.stmt = ast.Expr(written) if isinstance(written, ast.Lambda) else written
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    # Names such as `self.__hidden` contain the name of the class around them.
    owner = old.co_qualname.split(".")[-2:-1]
    added = [_CALL, *(prefix + name for name in called for prefix in (_OLD, _NEW))]
    frame = ast.parse(f"def make({', '.join((*old.co_freevars, *added))}):\n    class {_class_name(owner)}: pass")
    frame.body[0].body[0].body = [body]  # type: ignore[attr-defined]
    flags = old.co_flags & __future__.annotations.compiler_flag
    module = compile(ast.fix_missing_locations(frame), old.co_filename, "exec", flags, dont_inherit=True)
    new = list(with_nested(module))[3]  # after the module, `make` and the class
    return new.replace(co_qualname=old.co_qualname) if set(added) & set(new.co_freevars) else old


def _class_name(owner: list[str]) -> str:
    return owner[0] if owner and owner[0].isidentifier() else "_"


def _reduce(self: nn.Module, protocol: int) -> tuple:
    """Pickles and copies name the original class; loading makes the subclass again."""
    return _blank, (vars(type(self))["_written_class"],), self.__getstate__()


def _blank(cls: type[nn.Module]) -> nn.Module:
    adapted = with_mean_calls(cls)
    return adapted.__new__(adapted)
