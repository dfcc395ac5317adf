"""Formulas that save little: the backward pass recomputes intermediate values, which stay in the cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import is_traced

Formula = Callable[..., tuple[Tensor, Tensor]]

_BLOCK = 1 << 14  # elements; dozens of arrays of this size, with a few nodes each, fit into the cache
_BLOCK_ELSEWHERE = 1 << 22  # on other devices, where the memory for all nodes at once is what counts


def lean(formula: Formula) -> Formula:
    """Decorator for a moment function ``(mean, var, *tensors, **constants) -> (mean, var)`` of elementwise operations.

    In eager mode autograd saves only the tensor arguments and evaluates the formula again in the backward pass. Large
    dense tensors go through it block by block, so that quadrature nodes can have their own dimension. While compiling,
    and inside ``torch.func``, the formula runs as it is: the compiler does both by itself. The formula sees ``mean`` in
    the dtype of ``var``; the resulting mean has the dtype of the given one.

    Example:
        >>> import torch
        >>> @lean
        ... def double(mean, var, *, factor=2.0):
        ...     return factor * mean, factor**2 * var
        >>> double(torch.ones(2, dtype=torch.bfloat16), torch.ones(2))
        (tensor([2., 2.], dtype=torch.bfloat16), tensor([4., 4.]))
    """

    @functools.wraps(formula)
    def moments(mean: Tensor, var: Tensor, *tensors: Tensor, **constants: Any) -> tuple[Tensor, Tensor]:
        bound = functools.partial(formula, **constants)
        inputs = (mean.to(var.dtype), var, *tensors)
        if is_traced():
            expectation, variance = bound(*inputs)
        elif torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            expectation, variance = _Recomputed.apply(bound, *inputs)
        else:
            expectation, variance = _evaluate(bound, inputs)
        return expectation.to(mean.dtype), variance

    return moments


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, formula: Formula, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        ctx.formula = formula
        ctx.save_for_backward(*inputs)
        return _evaluate(formula, inputs)

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_var: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the gradients have to depend on the inputs themselves
            return None, *_gradients(ctx.formula, inputs, (g_mean, g_var), create_graph=True)

        def gradients(g_mean: Tensor, g_var: Tensor, *inputs: Tensor) -> tuple[Tensor | None, ...]:
            return _gradients(ctx.formula, [t.detach().requires_grad_() for t in inputs], (g_mean, g_var))

        return None, *_in_blocks(gradients, (g_mean, g_var, *inputs), len(inputs))


def _gradients(
    formula: Formula, inputs: Sequence[Tensor], gradients: tuple[Tensor, Tensor], create_graph: bool = False
) -> tuple[Tensor | None, ...]:
    wanted = [t for t in inputs if t.requires_grad]
    with torch.enable_grad():
        outputs = formula(*inputs)
    found = iter(torch.autograd.grad(outputs, wanted, gradients, create_graph=create_graph, materialize_grads=True))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


def _evaluate(formula: Formula, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        expectation, variance = _in_blocks(formula, inputs, 2)
    return expectation, variance


def _in_blocks(function: Callable, inputs: tuple[Tensor, ...], num_outputs: int) -> tuple[Tensor, ...]:
    """``function(*inputs)``, in pieces that stay in the cache if the memory layout allows it."""
    first = inputs[0]
    size = _BLOCK if first.device.type == "cpu" else _BLOCK_ELSEWHERE
    if (
        first.numel() <= size
        or any(t.shape != first.shape or t.stride() != first.stride() or t.dtype != first.dtype for t in inputs)
        or (flat := in_memory_order(first)) is None
    ):
        outputs: tuple[Tensor, ...] = function(*inputs)
        return outputs
    results = tuple(torch.empty_like(first) for _ in range(num_outputs))
    pieces = [torch.as_strided(t, flat.shape, (1,), t.storage_offset()).split(size) for t in (*results, *inputs)]
    for block in zip(*pieces, strict=True):
        for target, value in zip(block, function(*block[num_outputs:]), strict=False):
            target.copy_(value)
    return results


def in_memory_order(tensor: Tensor) -> Tensor | None:
    """A flat view of a dense tensor, or None for other tensors."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1).view(-1)
    return None
