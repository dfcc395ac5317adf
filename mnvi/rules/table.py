"""Tables of rules: which function answers which torch function, for one kind of value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments._torch import NATIVE_FUNCTIONS, is_compiling
from mnvi.rules.options import current
from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian

_NAMESPACES = (torch, Tensor, F, NATIVE_FUNCTIONS, torch.special)
_IN_PLACE: dict[Callable, bool] = {}
_CALLERS = 8  # frames between a rule and whoever called torch, torch's dispatch included
# Kept apart and compared by identity: dynamo calls these for `gaussian - tensor` but misses them as keys of a dict.
_REFLECTED = (Tensor.__rsub__, Tensor.__rdiv__, Tensor.__rpow__, Tensor.__rmatmul__)


_LOSS = "a loss of a random output is an expectation: use mnvi.ELBO with a likelihood, or pass x.mean"
_COMPARED = "whether two random values are equal is not known: compare x.mean"
_BY_MEANS = "a Gaussian answers it by its means: leave the covariances out with mnvi.Gaussian(x.mean, x.var)"
_NUMBERS = "it returns plain numbers, which only the tensors of a random value have: use x.mean or x.var"
_GRADIENT = "gradients start from a loss, which is one number: use mnvi.ELBO, or x.mean"
_RECURRENT = (
    "mnvi.convert replaces torch's recurrent layers, but not subclasses of them nor calls of the function itself; pass "
    "x.mean to leave the uncertainty out"
)
_POWER = "a power with a random exponent and a positive base is an exponential: torch.exp(x * math.log(base))"
_WRITABLE = "first x = mnvi.Gaussian(x, torch.zeros_like(x)), which can be changed in place"
_WRITTEN = f"a tensor cannot hold a random value in place, its variance would be lost; write {_WRITABLE}"
_LOSSES = """
    cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss kl_div gaussian_nll_loss binary_cross_entropy
    binary_cross_entropy_with_logits
"""
_OF_GAUSSIANS = "argmax argmin max min topk sort argsort median eq ne lt le gt ge"  # other values have no rule for them
_RECURRENCES = "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"
_HINTS = {
    name: hint
    for names, hint in (
        (_LOSSES, _LOSS),
        (_OF_GAUSSIANS, _BY_MEANS),
        ("item numpy tolist", _NUMBERS),
        ("backward", _GRADIENT),
        (_RECURRENCES, _RECURRENT),
        ("__rpow__", _POWER),
        ("__setitem__ copy_", _WRITTEN),
        ("equal allclose isclose", _COMPARED),
    )
    for name in names.split()
}


_ON_THE_WHOLE_LINE = """
    sinh cosh atan arctan asinh arcsinh exp2 sinc i0 i0e i1 i1e erfcx nan_to_num deg2rad rad2deg sgn sign round trunc
    fix floor ceil frac
"""
_ON_A_PART_OF_IT = """
    acos arccos asin arcsin acosh arccosh atanh arctanh tan logit erfinv ndtri lgamma
    gammaln digamma psi log_ndtr entr
"""


class NoRuleError(TypeError):
    """Raised when a function without a rule meets a ``Gaussian``; the message says how to add one.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.Gaussian(torch.zeros(2, 2), torch.ones(2, 2))
        >>> try:
        ...     torch.linalg.inv(x)
        ... except mnvi.NoRuleError as error:
        ...     print(str(error).split(";")[0])
        no rule for torch.linalg.inv on a Gaussian
    """


class RuleTable:
    """The rules of one kind of value.

    Args:
        value_name: the name of the value's class, for messages.
        decorator: the decorator that adds a rule, for messages.
    """

    def __init__(self, value_name: str, decorator: str) -> None:
        self._rules: dict[Callable, Callable] = {}
        self._reflected: list[tuple[Callable, Callable]] = []
        self._input_first: dict[Callable, bool] = {}
        self._value_name = value_name
        self._decorator = decorator
        # of mnvi.rules.dependence: gets function, rule and arguments, applies the rule, notes where results come from
        self.follow: Callable | None = None
        self.afterwards: Callable | None = None  # gets function, rule, result and arguments; returns the final result

    def rule(self, *functions: Callable) -> Callable[[Callable], Callable]:
        """Decorator: answer these functions with the decorated one; a later rule replaces an earlier one."""
        if not functions:
            raise TypeError(f"rule: expected torch functions, e.g. @{self._decorator}(torch.erf), got none")
        for function in functions:
            if not callable(function):
                raise TypeError(f"rule: expected torch functions, e.g. @{self._decorator}(torch.erf), got {function!r}")
            if not _asks_for_rules(function):
                raise TypeError(
                    f"rule: {function.__name__} does not dispatch on its arguments; above a rule write e.g. "
                    f"@{self._decorator}(torch.erf), with the torch function that it answers"
                )

        def register(handler: Callable) -> Callable:
            for function in functions:
                self._input_first[function] = _takes_input_first(handler)
                if function in _REFLECTED:
                    self._reflected.insert(0, (function, handler))
                else:
                    self._rules[function] = handler
            return handler

        return register

    def __contains__(self, function: Callable) -> bool:
        return function in self._rules or any(function is known for known, _ in self._reflected)

    def find(self, function: Callable) -> Callable | None:
        """The rule for a function, or None."""
        handler = self._rules.get(function)
        if handler is None:
            for known, answers in self._reflected:
                if known is function and handler is None:
                    handler = answers
        return handler

    def answer(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Look the rule up, apply it, and honour in-place calls.

        Some distributions of torch compute with what they are given before they check it, or never check it. The rules
        would answer, and make a distribution with random parameters.
        """
        if not is_compiling() and _in_a_distribution():
            raise TypeError(
                f"a distribution of torch takes tensors, not a {self._value_name}; Normal(x.mean, x.std) is the "
                f"distribution of a {self._value_name} x; for the distribution of the targets call "
                "likelihood.predictive(x)"
            )
        handler = self.find(function)
        if handler is None:
            raise NoRuleError(self.explain(function))
        if kwargs.get("out") is not None:
            raise TypeError(f"{name_of(function)}: out= cannot hold a {self._value_name}; use the returned value")
        if not args and "input" in kwargs and self._input_first[function]:
            args, kwargs = (kwargs["input"],), {name: value for name, value in kwargs.items() if name != "input"}
        result = handler(*args, **kwargs) if self.follow is None else self.follow(function, handler, args, kwargs)
        if self.afterwards is not None and current().spatial == "shared_weights":
            result = self.afterwards(function, handler, result, args, kwargs)
        if kwargs.get("inplace") or function in _IN_PLACE:
            target = args[0]
            if isinstance(target, Tensor):
                # not a TypeError, which `x += g` would turn into x = x + g, leaving other names of x without variance
                plain = name_of(function).rpartition(".")[2].removesuffix("_")
                raise RuntimeError(
                    f"{name_of(function)}: a tensor cannot hold a {self._value_name} in place, its variance would be "
                    f"lost; write y = x.{plain}(...), which makes a new value, or {_WRITABLE}"
                )
            return target.become(result)
        return result

    def explain(self, function: Callable) -> str:
        """Error message for a function without a rule."""
        name = name_of(function)
        missing = f"no rule for {name} on a {self._value_name}; "
        if hint := _HINTS.get(name.rpartition(".")[2]):
            return f"{missing}{hint}. If it has a meaning for you, give it a rule with @{self._decorator}({name})"
        return (
            f"{missing}give it one with @{self._decorator}({name}), a function from the call's arguments to a "
            f"{self._value_name}.{self._shortcut(name)} If you do not need the uncertainty here, pass x.mean"
        )

    def _shortcut(self, name: str) -> str:
        plain = name.rpartition(".")[2].removesuffix("_").removeprefix("special_")
        if self._value_name != "Gaussian":
            return ""
        if plain in _ON_A_PART_OF_IT.split():
            return (
                f" Where the variance is small this is enough: mnvi.rule({name})(mnvi.elementwise({name}, 'taylor'))."
            )
        if plain in _ON_THE_WHOLE_LINE.split() or not name.startswith("torch"):
            return f" For an elementwise function this is enough: mnvi.rule({name})(mnvi.elementwise({name}))."
        return ""


def every(*names: str) -> tuple[Callable, ...]:
    """All spellings of these operations: function, method, ``nn.functional``; in-place ones (``name_``) included."""
    found: dict[Callable, None] = {}
    for name in names:
        for namespace in _NAMESPACES:
            if callable(function := getattr(namespace, name, None)):
                found[function] = None
            if callable(function := getattr(namespace, name + "_", None)):
                found[function] = None
                _IN_PLACE[function] = True
    if not found:
        raise AttributeError(f"torch has no operation named {', '.join(names)}")
    return tuple(found)


def _in_a_distribution() -> bool:
    """Whether a constructor of torch's distributions, or a Dirichlet, makes this call, itself or through a helper."""
    frame = inspect.currentframe()
    for _ in range(_CALLERS):
        frame = frame.f_back if frame is not None else None
        module = "" if frame is None else str(frame.f_globals.get("__name__"))
        if frame is None or not module.startswith(("mnvi.", "torch.")):
            return False
        if module.startswith("torch.distributions.") and frame.f_code.co_name in ("__init__", "broadcast_all"):
            return True
        if module == "torch.distributions.dirichlet":  # made without a look at its parameter, it computes later
            return True
    return False


def _asks_for_rules(function: Callable) -> bool:
    """False for a Python function that does not use torch's dispatch, such as one under a bare ``@rule``."""
    if not isinstance(function, FunctionType) or (function.__module__ or "").startswith("torch"):
        return True
    return hasattr(function, "__wrapped__") or "handle_torch_function" in function.__code__.co_names


def _takes_input_first(handler: Callable) -> bool:
    """Whether to pass ``input=``, torch's name for the first argument of most functions, by position."""
    try:
        parameters = list(inspect.signature(handler, follow_wrapped=False).parameters.values())
    except ValueError:  # not written in Python
        return False
    if not parameters or parameters[0].kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD):
        return False
    return all(parameter.name != "input" for parameter in parameters)


def name_of(function: Callable) -> str:
    name = getattr(function, "__name__", str(function))
    for family in ("linalg", "special"):
        if name.startswith(f"{family}_"):
            return f"torch.{family}.{name.removeprefix(f'{family}_')}"
    for prefix, namespace in (("torch.nn.functional", F), ("torch", torch), ("torch.Tensor", Tensor)):
        if getattr(namespace, name, None) is function:
            return f"{prefix}.{name}"
    return f"{getattr(function, '__module__', None) or 'torch'}.{name}"


RULES = Gaussian._rules = RuleTable("Gaussian", "mnvi.rule")
JOINT_RULES = JointGaussian._rules = RuleTable("JointGaussian", "mnvi.covariance.rule")
