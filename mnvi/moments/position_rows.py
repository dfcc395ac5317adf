"""Some positions of a feature map, which stand for all where a mean over positions is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnvi.moments._torch import is_traced, is_wrapped

_POSITIONS = 16  # that represent all others

Index = tuple[slice, ...]


class Picked(NamedTuple):
    """Means at some positions, at hand before a layer asks for them."""

    of: Tensor  # the means of all positions
    rows: Tensor  # [batch, positions, channels]


def position_dims(shape: Sequence[int], shared: Tensor) -> tuple[int, ...]:
    """Dimensions of the positions in a value of this shape.

    Example:
        >>> import torch
        >>> position_dims((8, 16, 4, 4), torch.zeros(8, 16, 1, 1))
        (2, 3)
    """
    return tuple(d for d, size in enumerate(shared.shape) if size == 1 and shape[d] != 1)


def some_positions(values: Tensor, shared: Tensor) -> Tensor:
    """At most 16 evenly spaced positions, which cost next to nothing and have nearly the same mean.

    Example:
        >>> import torch
        >>> some_positions(torch.arange(300.0)[None], torch.zeros(1, 1)).shape
        torch.Size([1, 16])
    """
    return values[_spaced(values, shared)]


def _spaced(values: Tensor, shared: Tensor) -> Index:
    dims = position_dims(values.shape, shared)
    index: list[slice] = [slice(None)] * values.dim()
    for d in dims:
        step = -(-values.shape[d] // int(_POSITIONS ** (1 / len(dims)) + 1e-9))
        step += step > 2 and step % 2 == 0  # odd, so that all phases of a stride of two take part
        index[d] = slice(min(step // 2, values.shape[d] - 1), None, step)
    return tuple(index)


def beside(mean: Tensor, var: Tensor, shared: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Moments for a single function whose gradients are new tensors, and the same moments at some positions.

    The gradient of the few is added in place to that of all: no tensor of zeros is as large as the feature map.

    Example:
        >>> import torch
        >>> mean, var, few = beside(torch.zeros(1, 2, 8, 8), torch.ones(1, 2, 8, 8), torch.zeros(1, 2, 1, 1))
        >>> mean.shape, few[1].shape
        (torch.Size([1, 2, 8, 8]), torch.Size([1, 2, 4, 4]))
    """
    index = _spaced(mean, shared)
    if not torch.is_grad_enabled() or is_traced() or any(is_wrapped(t) or not t.requires_grad for t in (mean, var)):
        return mean, var, (mean[index], var[index])
    mean, few_means = _Beside.apply(index, mean)
    var, few_variances = _Beside.apply(index, var)
    return mean, var, (few_means, few_variances)


class _Beside(torch.autograd.Function):
    """A tensor, and some of its entries."""

    @staticmethod
    def forward(ctx: Any, index: Index, values: Tensor) -> tuple[Tensor, Tensor]:
        ctx.index = index
        ctx.set_materialize_grads(False)
        return values.view_as(values), values[index].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_some: Tensor | None) -> tuple[None, Tensor | None]:
        if of_some is None:
            return None, grad
        assert grad is not None, "the function that uses all positions gives a gradient"
        if torch.is_grad_enabled():  # create_graph: nothing may change in place
            more = torch.zeros_like(grad)
            more[ctx.index] = of_some
            return None, grad + more
        grad[ctx.index] += of_some
        return None, grad


def rows(values: Tensor, dims: Sequence[int]) -> Tensor:
    """[batch, positions, channels], with the positions of these dimensions.

    Sums over positions are fast in this order, and so is picking some of them.

    Example:
        >>> import torch
        >>> rows(torch.zeros(2, 3, 4, 4), (2, 3)).shape
        torch.Size([2, 16, 3])
    """
    others = [d for d in range(values.dim()) if d not in dims]
    batch = others[:1] if len(others) > 1 and others[0] == 0 else []
    channels = others[len(batch) :]
    sizes = [math.prod([values.shape[d] for d in group]) for group in (batch, dims, channels)]
    return values.permute(*batch, *dims, *channels).reshape(sizes)


def over_pairs(values: Tensor) -> Tensor:
    """Sum over pairs of different positions of the product of two values, [batch, channels] from rows.

    Example:
        >>> import torch
        >>> over_pairs(torch.tensor([[[1.0], [3.0]]]))
        tensor([[6.]])
    """
    return values.sum(1).square() - values.square().sum(1)
