"""For hand-written backward passes that cannot be differentiated again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def first_order(backward: Callable) -> Callable:
    """Decorator: refuse ``create_graph=True``.

    ``torch.autograd.function.once_differentiable`` refuses only when the incoming gradient needs a graph; when only the
    saved tensors depend on the inputs, as in the second derivative of a loss, it would be silently left out.

    Example:
        >>> import torch, mnvi
        >>> mean = torch.zeros(2, requires_grad=True)
        >>> out = torch.relu(mnvi.Gaussian(mean, torch.ones(2))).mean.sum()
        >>> try:
        ...     torch.autograd.grad(out, mean, create_graph=True)
        ... except RuntimeError as error:
        ...     print(str(error).split(";")[0])
        _ReLU: its backward pass cannot be differentiated again
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        transformed = torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None
        if torch.is_grad_enabled() and not transformed:
            raise _error(type(ctx).__name__.removesuffix("Backward"))
        return backward(ctx, *gradients)

    return checked


def refuse_nested_gradients(name: str) -> None:
    """The same inside ``torch.func``, which records every backward pass: there the nested gradients are counted, in the
    forward pass, where all of them are still open.

    Example:
        >>> refuse_nested_gradients("relu")
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        return
    transforms = torch._C._functorch.get_interpreter_stack() or []
    if sum(transform.key() == torch._C._functorch.TransformType.Grad for transform in transforms) > 1:
        raise _error(name)


def _error(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name}: its backward pass cannot be differentiated again; call it without create_graph, and without nesting "
        "torch.func.grad or jacrev"
    )
