r"""ReLU: exact moments, stable for every mean and variance, with a closed-form backward pass.

``formula`` has the equations, ``kernels`` the ways to run them, and the table below chooses among them. The floor under
the input's variance comes from ``mnvi.options(relu_floor=...)``, which is in ``mnvi/rules/options.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mnvi.moments._torch import is_compiling, is_fused, is_wrapped
from mnvi.moments.activations.relu import formula, kernels
from mnvi.moments.differentiation import differentiated_again
from mnvi.moments.memory_order import in_memory_order
from mnvi.moments.normal import Deviation
from mnvi.moments.one_channel import stored
from mnvi.moments.recomputation import is_recomputed, recomputed

Moments = tuple[Tensor, Tensor]


def relu(mean: Tensor, var: Tensor, floor: float = 0.0, deviation: Deviation | None = None) -> Moments:
    r"""Moments of :math:`\max(Z, 0)`; exact for Gaussian ``Z``.

    Args:
        mean: :math:`\mu`.
        var: :math:`\sigma^2`.
        floor: lower bound on ``var``.
        deviation: :math:`\sigma` and :math:`1/\sigma`, if they are known; compiled code then takes no root.

    Example:
        >>> import torch
        >>> relu(torch.tensor([0.0]), torch.tensor([1.0]))
        (tensor([0.3989]), tensor([0.3408]))
    """
    if deviation is not None and not floor and _compiled(mean, var):
        expectation, variance, _, _ = formula.moments(mean, var, deviation)
        return expectation, variance
    for applies, answer in _IMPLEMENTATIONS:
        if applies(mean, var):
            return answer(mean, var, floor)
    return _with_backward(mean, var, floor)


def _of_any_order(mean: Tensor, var: Tensor, floor: float) -> Moments:
    expectation, variance = kernels.ReLUOfAnyOrder.apply(mean, _floored(var, floor))
    return expectation, variance


def _of_replicas(mean: Tensor, var: Tensor, floor: float) -> Moments:
    expectation, variance, _, _ = kernels.ReLUOfReplicas.apply(mean, var, floor)
    return expectation, variance


def _by_the_formula(mean: Tensor, var: Tensor, floor: float) -> Moments:
    expectation, variance, _, _ = formula.moments(mean, _floored(var, floor))
    return expectation, variance


def _in_blocks(mean: Tensor, var: Tensor, floor: float) -> Moments:
    expectation, variance = kernels.blocked(mean, _floored(var, floor), for_backward=False)
    return expectation, variance


def _recomputed(mean: Tensor, var: Tensor, floor: float) -> Moments:
    """The compiler would save E, V, Φ and φ/σ; the backward pass computes them again from μ and σ²."""

    def from_the_saved(mean: Tensor, var: Tensor) -> Moments:
        if var.stride() != mean.stride():  # the compiler would save it in the order of its dimensions
            var = stored(var.contiguous())
        moments: Moments = recomputed(_with_backward, mean, var, floor)
        return moments

    moments: Moments = in_memory_order(from_the_saved, mean, var)
    return moments


def _with_backward(mean: Tensor, var: Tensor, floor: float) -> Moments:
    expectation, variance, _, _ = kernels.ReLU.apply(mean, _floored(var, floor))
    return expectation, variance


def _floored(var: Tensor, floor: float) -> Tensor:
    return var.clamp(min=floor) if floor else var


def _replicated(mean: Tensor, var: Tensor) -> bool:
    """Whether the tensors, inside ``torch.func``, represent CPU tensors with one more dimension."""
    return (
        not is_compiling()
        and not is_fused()
        and mean.device.type == "cpu"
        and mean.shape == var.shape
        and any(is_wrapped(t) for t in (mean, var))
    )


def _without_gradient(mean: Tensor, var: Tensor) -> bool:
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in (mean, var)))


def _compiled(mean: Tensor, var: Tensor) -> bool:
    return is_compiling() and _without_gradient(mean, var)


def _large(mean: Tensor, var: Tensor) -> bool:
    return _without_gradient(mean, var) and kernels.blockable(mean, var)


_IMPLEMENTATIONS: tuple[tuple[Callable[[Tensor, Tensor], bool], Callable[[Tensor, Tensor, float], Moments]], ...] = (
    (differentiated_again, _of_any_order),  # second derivatives and forward mode
    (_replicated, _of_replicas),  # many networks trained as one
    (_compiled, _by_the_formula),  # inference, where the compiler fuses the formula
    (_large, _in_blocks),  # inference in eager mode
    (is_recomputed, _recomputed),  # training, where the compiler fuses the formulas
)
"""Which implementation answers: the first one whose condition holds, otherwise the one with a backward pass."""
