"""Guards for hand-written backward passes, which cannot be differentiated again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import (
    differentiation_levels,
    is_compiling,
    is_traced,
    taking_forward_derivatives,
)


def first_order(backward: Callable) -> Callable:
    """Decorator: refuse ``create_graph=True``.

    ``torch.autograd.function.once_differentiable`` refuses only when the incoming gradient needs a graph. When only the
    saved tensors depend on the inputs, as in the second derivative of a loss, it would silently drop their part.

    Example:
        >>> import torch
        >>> class Twice(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return 2 * x
        ...     @staticmethod
        ...     @first_order
        ...     def backward(ctx, grad):
        ...         return 2 * grad
        >>> x = torch.zeros(2, requires_grad=True)
        >>> try:
        ...     torch.autograd.grad(Twice.apply(x).sum(), x, create_graph=True)
        ... except RuntimeError as error:
        ...     print(str(error).split(";")[0])
        Twice: its backward pass cannot be differentiated again
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled() and not is_traced():
            raise _error(type(ctx).__name__.removesuffix("Backward"))
        return backward(ctx, *gradients)

    return checked


def differentiated_again(*tensors: Tensor) -> bool:
    """Whether ``torch.func`` or ``torch.autograd.forward_ad`` will differentiate results on these tensors twice or in
    forward mode, where a hand-written first-order backward pass is not enough.

    ``torch.func.grad`` wraps a tensor once for every gradient taken through it. If the network's parameters require
    gradients, the tensor requires one below all wrappers.

    Example:
        >>> import torch
        >>> differentiated_again(torch.ones(1, requires_grad=True))
        False
    """
    if is_compiling():
        return False
    if taking_forward_derivatives():
        return True
    if not is_traced():
        return False
    levels = set().union(*map(differentiation_levels, tensors))
    return len(levels) > 1


def _error(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name}: its backward pass cannot be differentiated again; call it without create_graph, or use "
        "torch.func.grad, torch.func.jacrev or torch.func.hessian, which can be nested"
    )
