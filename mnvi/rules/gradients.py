"""Refuses a ``torch.autograd.Function`` that would cut the gradient of a random value."""

from __future__ import annotations

import inspect

from mnvi.values.gaussian import Gaussian

_APPLY = "torch.autograd.function"


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
    frame = inspect.currentframe()
    below = frame
    while frame is not None:
        if frame.f_code.co_name == "apply" and frame.f_globals.get("__name__") == _APPLY and below is not None:
            name = getattr(frame.f_locals.get("cls"), "__name__", "a torch.autograd.Function")
            raise RuntimeError(
                f"{name}.apply: a torch.autograd.Function finds no tensor in a Gaussian and would cut its gradient "
                f"({below.f_code.co_filename}, line {below.f_lineno}, in {below.f_code.co_name}); if it is "
                f"elementwise, call mnvi.elementwise({name}.apply) instead, or write it with torch's own functions"
            )
        frame, below = frame.f_back, frame
