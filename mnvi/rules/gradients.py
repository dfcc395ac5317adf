"""Refuses a ``torch.autograd.Function`` that would cut the gradient of a random value."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch.autograd import Function

from mnvi.values.gaussian import Gaussian


def refuse_cut_gradient(operands: list[Gaussian]) -> None:
    """Raise an error if a ``torch.autograd.Function`` computes with values that need a gradient.

    torch looks for tensors among the arguments of such a function, finds none in a ``Gaussian``, and runs its
    ``forward`` without recording: the layers before it would learn from the KL alone. Call this where gradients are
    switched off.

    Args:
        operands: the random operands of an operation.
    """
    if not any(value.requires_grad for value in operands):
        return
    functions = {inspect.unwrap(function.forward): function for function in _descendants(Function)}
    names = {getattr(forward, "__code__", None): function.__name__ for forward, function in functions.items()}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in names:
            name = names[frame.f_code]
            raise RuntimeError(
                f"{name}.apply: a torch.autograd.Function finds no tensor in a Gaussian and would cut its gradient "
                f"({frame.f_code.co_filename}, line {frame.f_lineno}, in {frame.f_code.co_name}); if it is "
                f"elementwise, call mnvi.elementwise({name}.apply) instead, or write it with torch's own functions"
            )
        frame = frame.f_back


def _descendants(base: type[Function]) -> Iterator[type[Function]]:
    """All classes below one, the nearest first."""
    for child in base.__subclasses__():
        yield child
        yield from _descendants(child)
