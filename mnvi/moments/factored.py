r"""Factored variances: squared weights as an outer product, so that one channel of variances serves all outputs.

The variance of a layer's output is :math:`V_i(p) = \sum_{jk} A_{ijk} u_j(p + k)` with :math:`A = M\circ M \ge 0`,
output channel i, input channel j and tap k. With

.. math:: a_i = \sum_{jk} A_{ijk}, \qquad b_{jk} = \frac{\sum_i A_{ijk}}{\sum_{ijk} A_{ijk}}, \qquad
          V_i(p) \approx a_i\,s(p), \qquad s(p) = \sum_{jk} b_{jk}\,u_j(p + k)

as :mod:`mnvi.moments.outer_products` chooses them, the variance is exact for inputs of equal second moments, and summed
over the outputs it is exact for every input. The channels of a group have factors of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import is_fused, is_traced
from mnvi.moments.affine import Affine, lowered, second_moment
from mnvi.moments.memory_order import has_channels_last, in_memory_order
from mnvi.moments.normal import Deviation
from mnvi.moments.one_channel import one_channel, one_channel_gradients, stored
from mnvi.moments.outer_products import Factors, factors
from mnvi.moments.precision import full_precision, widened

_SMALLEST_ROOT = 1e-18  # the product of two, and its inverse, are normal numbers in float32


def multiplicative_noise(
    affine: Affine, mean: Tensor, var: Tensor | None, weight: Tensor, bias: Tensor | None, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Moments of a layer with weights :math:`\mathcal N(m, \alpha m^2)`, the variance factored.

    .. math:: E = Mx + b, \qquad V = a\,b^\top(\alpha\circ x\circ x + (1+\alpha)\circ v)

    Args:
        affine, mean, weight, bias: as in :func:`mnvi.moments.affine.multiplicative_noise`.
        var: input variances v, or None for a known input.
        alpha: noise variances, one per input unit.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2)
        >>> multiplicative_noise(Affine(), one, one, one, None, torch.full((2,), 0.5))
        (tensor([[2.]]), tensor([[4.]]))
    """
    expectation = affine(*lowered(mean, weight, bias))
    with full_precision(mean):
        rows, columns = factors(affine, widened(weight).square())
        if var is None:  # noise on the weights instead, so that the backward pass need not reach the input
            columns = columns * affine.along_weight(alpha, columns)
            sums = summed(affine, widened(mean).square(), columns)
        else:
            sums = noisy_sums(affine, mean, var, affine.along_input(alpha), columns)
        return expectation, spread_out(affine, rows, sums, expectation)


def independent_weights(
    affine: Affine,
    mean: Tensor,
    var: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    spread: Tensor,
    bias_spread: Tensor | None,
) -> tuple[Tensor, Tensor]:
    r"""Moments of a layer with weights :math:`\mathcal N(m, s)`, the two parts of the variance factored.

    .. math:: E = Mx + b, \qquad V = a\,b^\top(x\circ x) + a'\,b'^\top v + s_b

    where :math:`a\,b^\top` stands for S and :math:`a'\,b'^\top` for :math:`S + M\circ M`.

    Args:
        affine, mean, var, weight, bias, spread, bias_spread: as in :func:`mnvi.moments.affine.independent_weights`.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2)
        >>> independent_weights(Affine(), one, one, one, None, 0.5 * one, None)
        (tensor([[2.]]), tensor([[4.]]))
    """
    expectation = affine(*lowered(mean, weight, bias))
    with full_precision(mean):
        spread = widened(spread)
        of_spread = [factors(affine, spread)]
        of_second = None if var is None else [factors(affine, spread + widened(weight).square())]
        bias_spread = None if bias_spread is None else widened(bias_spread)
        return expectation, variance(affine, widened(mean), var, of_spread, of_second, bias_spread, expectation)


def variance(
    affine: Affine,
    mean: Tensor,
    var: Tensor | None,
    of_spread: Sequence[Factors],
    of_second: Sequence[Factors] | None,
    bias: Tensor | None,
    like: Tensor | None = None,
) -> Tensor:
    """Variance of independent weights from the factors of their variances and second moments.

    Args:
        affine, mean, var: as in :func:`independent_weights`.
        of_spread, of_second: terms of S and of S + M∘M; the latter are not used without ``var``.
        bias: variances of the biases [out], or None.
        like: as in :func:`spread_out`.

    Example:
        >>> import torch
        >>> one, halves = torch.ones(1, 2), [Factors(torch.ones(1), torch.full((1, 2), 0.5))]
        >>> variance(Affine(), one, one, halves, halves, None)
        tensor([[2.]])
    """
    total = of_terms(affine, mean.square(), of_spread, like)
    if var is not None:
        assert of_second is not None
        total = total + of_terms(affine, widened(var), of_second, like)
    return total if bias is None else total + affine.along_input(bias)


def of_terms(affine: Affine, values: Tensor, terms: Sequence[Factors], like: Tensor | None = None) -> Tensor:
    """:math:`\\sum_r a_r\\,b_r^\\top u`

    Args:
        affine: the layer's linear operation.
        values: u, laid out as the layer's input.
        terms: the factors :math:`a_r, b_r`.
        like: as in :func:`spread_out`.

    Example:
        >>> import torch
        >>> of_terms(Affine(), torch.ones(1, 2), [Factors(torch.tensor([3.0]), torch.full((1, 2), 0.5))])
        tensor([[3.]])
    """
    first, *more = (spread_out(affine, rows, summed(affine, values, columns), like) for rows, columns in terms)
    return sum(more, first)


def spread_out(affine: Affine, rows: Tensor, sums: Tensor, like: Tensor | None = None) -> Tensor:
    """:math:`a_i\\,s(p)`; while compiling this stays an expression of two small tensors.

    Args:
        affine: the layer's linear operation.
        rows: a [out].
        sums: s, with one channel for each group.
        like: the layer's means. In eager mode the result lies in memory as they do, so that what follows can read both
            together; s, with its one channel, does not tell how.

    Example:
        >>> import torch
        >>> spread_out(Affine(), torch.tensor([1.0, 2.0]), torch.tensor([[3.0]]))
        tensor([[3., 6.]])
    """
    if affine.groups > 1:
        sums = sums.repeat_interleave(len(rows) // affine.groups, affine.channel_dim)
        return affine.along_input(rows) * sums
    if is_traced():
        return affine.along_input(rows) * sums
    channels_last = like is not None and has_channels_last(like)
    if not (torch.is_grad_enabled() and (rows.requires_grad or sums.requires_grad)):
        return _outer(affine, rows, sums, channels_last)
    spread: Tensor = _SpreadOut.apply(affine, rows, sums, channels_last)
    return spread


def _outer(affine: Affine, rows: Tensor, sums: Tensor, channels_last: bool) -> Tensor:
    if channels_last:
        return (sums.movedim(affine.channel_dim, -1) * rows).movedim(-1, affine.channel_dim)
    return affine.along_input(rows) * sums


def deviation(affine: Affine, var: Tensor, rows: Tensor, sums: Tensor) -> Deviation:
    r"""The deviations of :func:`spread_out`: :math:`\sqrt{a_i}\sqrt{s(p)}`, a root for each channel and position.

    Args:
        affine: the layer's linear operation, without groups.
        var: the result of :func:`spread_out`.
        rows, sums: as there.

    Example:
        >>> import torch
        >>> rows, sums = torch.tensor([4.0, 9.0]), torch.tensor([[4.0]])
        >>> deviation(Affine(), spread_out(Affine(), rows, sums), rows, sums).sigma
        tensor([[4., 6.]])
    """
    of_rows, of_sums = (part.sqrt().clamp(min=_SMALLEST_ROOT) for part in (affine.along_input(rows), sums))
    return Deviation(var, stored(of_rows) * stored(of_sums), stored(1 / of_rows) * stored(1 / of_sums))


def summed(affine: Affine, values: Tensor, columns: Tensor) -> Tensor:
    """:math:`s = b^\\top u`, with one channel for each group.

    Args:
        affine: the layer's linear operation.
        values: u, laid out as the layer's input.
        columns: b, in the shape of the weight with one output for each group.

    Example:
        >>> import torch
        >>> summed(Affine(), torch.tensor([[1.0, 3.0]]), torch.tensor([[0.5, 0.5]]))
        tensor([[2.]])
    """
    if is_fused() or is_traced() or not torch.is_grad_enabled():
        return one_channel(affine, values, columns)
    sums: Tensor = _Summed.apply(affine, values, columns)
    return sums


def noisy_sums(affine: Affine, mean: Tensor, var: Tensor, alpha: Tensor, columns: Tensor) -> Tensor:
    """:math:`s = b^\\top(\\alpha\\circ x\\circ x + (1+\\alpha)\\circ v)`, whose backward pass saves only x and v.

    Args:
        affine, columns: as in :func:`summed`.
        mean, var: the input's moments x and v.
        alpha: laid out to broadcast against the input.

    Example:
        >>> import torch
        >>> noisy_sums(Affine(), torch.ones(1, 2), torch.ones(1, 2), torch.ones(2), torch.full((1, 2), 0.5))
        tensor([[3.]])
    """
    if is_fused() or is_traced() or not torch.is_grad_enabled():
        if affine.stride is None or mean.dim() < len(affine.stride) + 2:
            return one_channel(affine, second_moment(mean, var, alpha), columns)
        (moment,) = in_memory_order(lambda *given: (second_moment(*given),), mean, var, alpha[None])
        return one_channel(affine, moment, columns)
    sums: Tensor = _NoisySums.apply(affine, mean, var, alpha, columns)
    return sums


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, affine: Affine, values: Tensor, columns: Tensor) -> Tensor:
        ctx.affine = affine
        ctx.save_for_backward(values, columns)
        return one_channel(affine, values, columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        values, columns = ctx.saved_tensors
        return None, *one_channel_gradients(ctx.affine, grad, values, columns, *ctx.needs_input_grad[1:])


class _NoisySums(torch.autograd.Function):
    """Saves only its inputs; the backward pass recomputes the second moments."""

    @staticmethod
    def forward(ctx: Any, affine: Affine, mean: Tensor, var: Tensor, alpha: Tensor, columns: Tensor) -> Tensor:
        ctx.affine = affine
        ctx.save_for_backward(mean, var, alpha, columns)
        return one_channel(affine, second_moment(mean, var, alpha), columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        mean, var, alpha, columns = ctx.saved_tensors
        _, to_mean, to_var, to_alpha, to_columns = ctx.needs_input_grad
        with full_precision(mean):
            inner, g_columns = one_channel_gradients(
                ctx.affine, grad, second_moment(mean, var, alpha), columns, to_mean or to_var or to_alpha, to_columns
            )
            x, v = widened(mean), widened(var)
            g_mean = (2 * alpha * inner * x).to(mean.dtype) if to_mean else None
            g_var = inner * (1 + alpha) if to_var else None
            g_alpha = None
            if to_alpha:
                total = torch.addcmul(v, x, x).mul_(inner)
                g_alpha = total.sum_to_size((1,) * (total.dim() - alpha.dim()) + tuple(alpha.shape)).view(alpha.shape)
        return None, g_mean, g_var, g_alpha, g_columns


class _SpreadOut(torch.autograd.Function):
    """The outer product of channels and positions; its gradients are matrix products, without a third large tensor."""

    @staticmethod
    def forward(ctx: Any, affine: Affine, rows: Tensor, sums: Tensor, channels_last: bool) -> Tensor:
        ctx.affine = affine
        ctx.save_for_backward(rows, sums)
        return _outer(affine, rows, sums, channels_last)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, sums = ctx.saved_tensors
        channels = grad.movedim(ctx.affine.channel_dim, -1)  # [..., out]
        g_rows = g_sums = None
        if ctx.needs_input_grad[1]:
            g_rows = torch.tensordot(sums.movedim(ctx.affine.channel_dim, -1)[..., 0], channels, sums.dim() - 1)
        if ctx.needs_input_grad[2]:
            g_sums = (channels @ rows).unsqueeze(ctx.affine.channel_dim)
        return None, g_rows, g_sums, None
