"""Linear layers and convolutions with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments._torch import is_traced
from mnvi.moments.precision import autocasts, full_precision, widened
from mnvi.moments.recomputation import recomputed


@dataclass(frozen=True)
class Affine:
    """``x, weight, bias -> y``: a matrix product, or a convolution when its geometry is given.

    Args:
        stride, padding, dilation, transposed, output_padding, groups: as in ``torch.convolution``; a ``stride`` of None
            means a matrix product.

    Example:
        >>> import torch
        >>> Affine()(torch.ones(1, 3), torch.ones(2, 3))
        tensor([[3., 3.]])
    """

    stride: tuple[int, ...] | None = None
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    groups: int = 1

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.stride is None:
            return F.linear(x, weight, bias)
        batched = x.dim() == len(self.stride) + 2
        y = torch.convolution(x if batched else x[None], weight, bias, *self._geometry())
        return y if batched else y[0]

    def gradients(self, grad: Tensor, x: Tensor, weight: Tensor, to_x: bool, to_weight: bool) -> tuple[Any, Any]:
        """Gradients with respect to ``x`` and ``weight``, None for those not requested."""
        if self.stride is None:
            return (
                grad @ weight if to_x else None,
                grad.reshape(-1, len(weight)).T @ x.reshape(-1, weight.shape[1]) if to_weight else None,
            )
        batched = x.dim() == len(self.stride) + 2
        g_x, g_weight, _ = torch.ops.aten.convolution_backward(
            grad if batched else grad[None],
            x if batched else x[None],
            weight,
            None,
            *self._geometry(),
            (to_x, to_weight, False),
        )
        return (g_x[0] if to_x and not batched else g_x), g_weight

    def bias_gradient(self, grad: Tensor) -> Tensor:
        others = [d for d in range(grad.dim()) if d != grad.dim() + self.channel_dim]
        return grad.sum(others) if others else grad

    def along_input(self, units: Tensor) -> Tensor:
        """One value per input unit or channel, [in], laid out to broadcast against the input."""
        return units if self.stride is None else units.view(-1, *self._ones())

    def along_weight(self, units: Tensor, weight: Tensor) -> Tensor:
        """One value per input unit or channel, [in], laid out in the shape of ``weight`` or to broadcast against it."""
        if self.stride is None:
            return units
        if self.transposed:  # weight [in, out / groups, kernel...]
            return units.view(-1, 1, *self._ones())
        per_group = units.view(self.groups, 1, -1, *self._ones())  # weight [out, in / groups, kernel...]
        return per_group.expand(self.groups, len(weight) // self.groups, *per_group.shape[2:]).flatten(0, 1)

    def grouped(self, weight: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
        """``weight`` and one value per input unit, in shapes that broadcast without repeating a value."""
        if self.stride is None or self.transposed:
            return weight, self.along_weight(units, weight)
        shape = (self.groups, len(weight) // self.groups, *weight.shape[1:])
        return weight.view(shape), units.view(self.groups, 1, -1, *self._ones())

    def along_outputs(self, units: Tensor, weight: Tensor) -> Tensor:
        """One value per output unit or channel, [out], laid out to broadcast against ``weight``."""
        if self.stride is None:
            return units[:, None]
        if not self.transposed:
            return units.view(-1, 1, *self._ones())
        # weight [in, out / groups, kernel...]: the inputs of a group meet the outputs of that group
        per_group = units.view(self.groups, 1, -1).expand(-1, len(weight) // self.groups, -1)
        return per_group.flatten(0, 1)[(...,) + (None,) * len(self.stride)]

    def out_units(self, weight: Tensor) -> int:
        """Number of output units or channels."""
        return weight.shape[1] * self.groups if self.transposed else len(weight)

    @property
    def channel_dim(self) -> int:
        """Dimension of the units or channels in inputs and outputs, counted from the end."""
        return -1 if self.stride is None else -1 - len(self.stride)

    def _ones(self) -> tuple[int, ...]:
        assert self.stride is not None
        return (1,) * len(self.stride)

    def _geometry(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups


def multiplicative_noise(
    affine: Affine, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor | None, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Moments of a layer with weights :math:`\mathcal N(m, \alpha m^2)`; exact for independent inputs.

    .. math:: E = Mx + b, \qquad V = (M\circ M)\,(\alpha\circ x\circ x + (1+\alpha)\circ v)

    Args:
        affine: the layer's linear operation.
        mean, var: input means x and variances v.
        weight, bias: M and b.
        alpha: noise variances, laid out to broadcast against the input.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2)
        >>> multiplicative_noise(Affine(), one, one, one, None, torch.full((2,), 0.5))
        (tensor([[2.]]), tensor([[4.]]))
    """
    needs_gradient = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (mean, var, weight, bias, alpha)
    )
    if needs_gradient and not is_traced():
        expectation, variance = _MultiplicativeNoise.apply(affine, mean, var, weight, bias, alpha)
        return expectation, variance
    expectation = affine(*lowered(mean, weight, bias))
    with full_precision(mean):
        variance = affine(second_moment(mean, var, alpha), recomputed(torch.square, widened(weight)))
    return expectation, variance


class _MultiplicativeNoise(torch.autograd.Function):
    """Saves only its inputs; the backward pass recomputes the noisy second moments and squared weights."""

    @staticmethod
    def forward(
        ctx: Any, affine: Affine, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor | None, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        expectation = affine(*lowered(mean, weight, bias))
        with full_precision(mean):
            variance = affine(second_moment(mean, var, alpha), widened(weight).square())
        ctx.affine, ctx.low = affine, expectation.dtype
        ctx.save_for_backward(mean, var, weight, alpha)
        return expectation, variance

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_var: Tensor) -> tuple[Any, ...]:
        mean, var, weight, alpha = ctx.saved_tensors
        _, to_mean, to_var, to_weight, to_bias, to_alpha = ctx.needs_input_grad
        affine: Affine = ctx.affine
        with full_precision(mean):
            inner, inner_weight = affine.gradients(
                g_mean.to(ctx.low), mean.to(ctx.low), weight.to(ctx.low), to_mean, to_weight
            )
            total = torch.addcmul(widened(var), widened(mean), widened(mean))
            outer, outer_weight = affine.gradients(
                g_var,
                torch.addcmul(widened(var), total, alpha),
                widened(weight).square(),
                to_mean or to_var or to_alpha,
                to_weight,
            )
            g_x = g_v = g_w = g_a = None
            noisy = outer * alpha if to_mean or to_var else None
            if to_mean:
                g_x = inner.to(mean.dtype).addcmul(noisy, widened(mean), value=2).to(mean.dtype)
            if to_weight:
                g_w = inner_weight.to(weight.dtype).addcmul(outer_weight.to(weight.dtype), weight, value=2)
            if to_alpha:
                g_a = (total * outer).sum_to_size(_aligned(alpha, total)).reshape(alpha.shape)
            if to_var:
                g_v = outer + noisy
            g_b = affine.bias_gradient(g_mean.to(weight.dtype)) if to_bias else None
        return None, g_x, g_v, g_w, g_b, g_a


def independent_weights(
    affine: Affine,
    mean: Tensor,
    var: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    spread: Tensor,
    bias_spread: Tensor | None,
) -> tuple[Tensor, Tensor]:
    r"""Moments of a layer with weights :math:`\mathcal N(m, s)`, biases :math:`\mathcal N(b, s_b)`; exact too.

    .. math:: E = Mx + b, \qquad V = S\,(x\circ x + v) + (M\circ M)\,v + s_b

    Args:
        affine, mean, weight, bias: as in :func:`multiplicative_noise`.
        var: input variances v, or None for a known input.
        spread: S, in the shape of ``weight``.
        bias_spread: :math:`s_b`, or None.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2)
        >>> independent_weights(Affine(), one, one, one, None, 0.5 * one, None)
        (tensor([[2.]]), tensor([[4.]]))
    """
    expectation = affine(*lowered(mean, weight, bias))
    with full_precision(mean):
        bias_spread = None if bias_spread is None else widened(bias_spread)
        wide = widened(mean)
        # Not x² alone: after a ReLU most squares may be below 1e-38, where convolutions are a hundred times slower.
        second = wide.square() if var is None else torch.addcmul(widened(var), wide, wide)
        variance = affine(second, widened(spread), bias_spread)
        if var is not None:
            variance = variance + affine(widened(var), widened(weight).square())
    return expectation, variance


def shared_variance(
    affine: Affine, mean: Tensor, var: Tensor | None, weight: Tensor, bias: Tensor | None, spread: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Moments of a layer whose weights share a variance per input; exact for independent inputs.

    .. math:: E = Mx + b, \qquad V_i = \sum_j s_j(v_j + x_j^2) + \sum_j m_{ij}^2 v_j

    Args:
        affine, mean, var, weight, bias: as in :func:`independent_weights`.
        spread: s, laid out to broadcast against the input.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2)
        >>> shared_variance(Affine(), one, one, one, None, torch.full((2,), 0.5))
        (tensor([[2.]]), tensor([[4.]]))
    """
    expectation = affine(*lowered(mean, weight, bias))
    with full_precision(mean):
        square = widened(mean).square()
        noise = widened(spread) * (square if var is None else square + widened(var))
        one_output = _summing_weight(affine, weight)
        variance = affine(noise, widened(one_output))  # one output per group serves all outputs of the group
        per_group = expectation.shape[affine.channel_dim] // affine.groups
        variance = variance.repeat_interleave(per_group, affine.channel_dim)
        if var is not None:
            variance = variance + affine(widened(var), widened(weight).square())
    return expectation, variance


def _summing_weight(affine: Affine, weight: Tensor) -> Tensor:
    """Weights of ones that give one output unit per group."""
    if affine.transposed:
        return torch.ones_like(weight[:, :1])
    return torch.ones_like(weight[: affine.groups])


def second_moment(mean: Tensor, var: Tensor, alpha: Tensor) -> Tensor:
    """α∘x² + (1+α)∘v, as v + α∘(v + x²)."""
    wide = widened(mean)
    return torch.addcmul(widened(var), torch.addcmul(widened(var), wide, wide), alpha)


def lowered(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands of the mean in autocast's dtype; float64 does not change, as in torch's layers."""
    if autocasts(x) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    return x, weight, bias


def _aligned(alpha: Tensor, like: Tensor) -> tuple[int, ...]:
    return (1,) * (like.dim() - alpha.dim()) + tuple(alpha.shape)
