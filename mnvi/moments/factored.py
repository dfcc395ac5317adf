r"""Factored variances: squared weights as an outer product, so that one channel of variances serves all outputs.

The variance of a layer's output is :math:`V_i(p) = \sum_{jk} A_{ijk} u_j(p + k)` with :math:`A = M\circ M \ge 0`,
output channel i, input channel j and tap k. With

.. math:: a_i = \sum_{jk} A_{ijk}, \qquad b_{jk} = \frac{\sum_i A_{ijk}}{\sum_{ijk} A_{ijk}}, \qquad
          V_i(p) \approx a_i\,s(p), \qquad s(p) = \sum_{jk} b_{jk}\,u_j(p + k)

the outer product :math:`a\,b^\top` has the row sums and the column sums of A. The variance is then exact for inputs of
equal second moments, and summed over the outputs it is exact for every input. The channels of a group have factors of
their own.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnvi.moments._torch import is_fused, is_traced
from mnvi.moments.affine import Affine, lowered, second_moment
from mnvi.moments.one_channel import one_channel, one_channel_gradients
from mnvi.moments.precision import full_precision, widened

LARGEST_MISS = 0.3
"""Layers whose :func:`miss` is larger stay exact."""
FEWEST_OUTPUTS = 16
"""Layers with fewer outputs in a group stay exact: they cost little, and there are few outputs to average an error."""
LARGEST_TAP_MISS = 0.05
"""For inference, b becomes a product of channels and taps where that changes no sum by more than this."""
MOST_LAST_OUTPUTS = 1024
"""A last layer with no more outputs stays exact: nothing after it averages its errors, and it costs little."""


class Factors(NamedTuple):
    """a [out], and b in the shape of the weight, but with one output for each group."""

    rows: Tensor
    columns: Tensor


def factors(affine: Affine, matrix: Tensor) -> Factors:
    """The factors :math:`a, b` of a non-negative matrix in the shape of a weight; zeros if it is zero.

    Args:
        affine: the layer's linear operation.
        matrix: A, in the shape of the weight.

    Example:
        >>> import torch
        >>> factors(Affine(), torch.tensor([[1.0, 3.0], [2.0, 6.0]]))
        Factors(rows=tensor([4., 8.]), columns=tensor([[0.2500, 0.7500]]))
    """
    grouped, outputs = _grouped(affine, matrix)
    others = [d for d in range(1, grouped.dim()) if d != outputs]
    rows = grouped.sum(others)  # [groups, outputs in a group]
    total = rows.sum(1).clamp(min=torch.finfo(matrix.dtype).tiny)
    columns = grouped.sum(outputs, keepdim=True) / total.view(-1, *(1,) * (grouped.dim() - 1))
    return Factors(rows.flatten(), columns.flatten(0, 1))


def product(affine: Affine, of: Factors) -> Tensor:
    """The matrix :math:`a\\,b^\\top`, in the shape of the weight.

    Example:
        >>> import torch
        >>> product(Affine(), Factors(torch.tensor([4.0, 8.0]), torch.tensor([[0.25, 0.75]])))
        tensor([[1., 3.],
                [2., 6.]])
    """
    columns = of.columns
    if not affine.transposed:
        columns = columns.repeat_interleave(len(of.rows) // affine.groups, 0)
    return affine.along_outputs(of.rows, columns) * columns


def miss(affine: Affine, matrix: Tensor) -> Tensor:
    r"""How far the outer product is from the matrix: :math:`\|A - a\,b^\top\|_F \,/\, \|a\|`.

    For inputs whose second moments are independent with a standard deviation as large as their mean, this is the error
    of the outputs' variances (root mean square) relative to their size. Gaussian weights give
    :math:`\sqrt{2/\text{fan-in}}`.

    Args:
        affine: the layer's linear operation.
        matrix: A, in the shape of the weight.

    Example:
        >>> import torch
        >>> miss(Affine(), torch.tensor([[1.0, 3.0], [2.0, 6.0]])), miss(Affine(), torch.eye(2))
        (tensor(0.), tensor(0.7071))
    """
    found = factors(affine, matrix)
    size = found.rows.norm().clamp(min=torch.finfo(matrix.dtype).tiny)
    return (matrix - product(affine, found)).norm() / size


def separated(affine: Affine, columns: Tensor) -> tuple[Tensor, Tensor] | None:
    r"""b as a product of channels and taps, :math:`b_{jk} \approx b_j d_k`, or None where it is not nearly one.

    The sums over channels and over taps stay. :math:`\|b_{jk} - b_j d_k\|` is the error of s, relative to its size,
    for inputs as in :func:`miss`; it must not exceed ``LARGEST_TAP_MISS``.

    Args:
        affine: the layer's linear operation; a matrix product, groups and transposed convolutions give None.
        columns: b.

    Example:
        >>> import torch
        >>> conv = Affine((1,), (0,), (1,), False, (0,))
        >>> separated(conv, torch.tensor([[[0.1, 0.1], [0.4, 0.4]]]))
        (tensor([[[0.2000],
                 [0.8000]]]), tensor([[[0.5000, 0.5000]]]))
    """
    if affine.stride is None or affine.transposed or affine.groups > 1 or columns[0, 0].numel() == 1:
        return None
    channels = columns.sum(list(range(2, columns.dim())), keepdim=True)
    taps = columns.sum(1, keepdim=True)
    return (channels, taps) if (columns - channels * taps).norm() <= LARGEST_TAP_MISS else None


def worthwhile(affine: Affine, weight: Tensor) -> bool:
    """Whether a layer of this shape is factored in training, where weights change: it asks nothing of their values.

    It needs ``FEWEST_OUTPUTS`` outputs in a group, and a fan-in for which Gaussian weights miss by no more than
    ``LARGEST_MISS``: 23 or more.

    Example:
        >>> import torch
        >>> worthwhile(Affine(), torch.ones(64, 32)), worthwhile(Affine(), torch.ones(10, 32))
        (True, False)
    """
    outputs = affine.out_units(weight)
    fan_in = weight.numel() * affine.groups // outputs if affine.transposed else weight.numel() // outputs
    return outputs // affine.groups >= FEWEST_OUTPUTS and math.sqrt(2 / fan_in) <= LARGEST_MISS


def is_small_output(affine: Affine, weight: Tensor) -> bool:
    """Whether a layer of this shape stays exact where it is a network's last layer.

    Example:
        >>> import torch
        >>> is_small_output(Affine(), torch.ones(1000, 512))
        True
    """
    return affine.out_units(weight) <= MOST_LAST_OUTPUTS


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
        return expectation, spread_out(affine, rows, sums)


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
        of_spread = factors(affine, spread)
        of_second = None if var is None else factors(affine, spread + widened(weight).square())
        bias_spread = None if bias_spread is None else widened(bias_spread)
        return expectation, variance(affine, widened(mean), var, of_spread, of_second, bias_spread)


def variance(
    affine: Affine, mean: Tensor, var: Tensor | None, of_spread: Factors, of_second: Factors | None, bias: Tensor | None
) -> Tensor:
    """Variance of independent weights from the factors of their variances and second moments.

    Args:
        affine, mean, var: as in :func:`independent_weights`.
        of_spread, of_second: factors of S and of S + M∘M; the latter is not used without ``var``.
        bias: variances of the biases [out], or None.

    Example:
        >>> import torch
        >>> one, halves = torch.ones(1, 2), Factors(torch.ones(1), torch.full((1, 2), 0.5))
        >>> variance(Affine(), one, one, halves, halves, None)
        tensor([[2.]])
    """
    total = spread_out(affine, of_spread.rows, summed(affine, mean.square(), of_spread.columns))
    if var is not None:
        assert of_second is not None
        total = total + spread_out(affine, of_second.rows, summed(affine, widened(var), of_second.columns))
    return total if bias is None else total + affine.along_input(bias)


def spread_out(affine: Affine, rows: Tensor, sums: Tensor) -> Tensor:
    """:math:`a_i\\,s(p)`; while compiling this stays an expression of two small tensors.

    Args:
        affine: the layer's linear operation.
        rows: a [out].
        sums: s, with one channel for each group.

    Example:
        >>> import torch
        >>> spread_out(Affine(), torch.tensor([1.0, 2.0]), torch.tensor([[3.0]]))
        tensor([[3., 6.]])
    """
    if affine.groups > 1:
        sums = sums.repeat_interleave(len(rows) // affine.groups, affine.channel_dim)
        return affine.along_input(rows) * sums
    if is_traced() or not (torch.is_grad_enabled() and (rows.requires_grad or sums.requires_grad)):
        return affine.along_input(rows) * sums
    spread: Tensor = _SpreadOut.apply(affine, rows, sums)
    return spread


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
        return one_channel(affine, second_moment(mean, var, alpha), columns)
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
    def forward(ctx: Any, affine: Affine, rows: Tensor, sums: Tensor) -> Tensor:
        ctx.affine = affine
        ctx.save_for_backward(rows, sums)
        return affine.along_input(rows) * sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        rows, sums = ctx.saved_tensors
        channels = grad.movedim(ctx.affine.channel_dim, -1)  # [..., out]
        g_rows = g_sums = None
        if ctx.needs_input_grad[1]:
            g_rows = torch.tensordot(sums.movedim(ctx.affine.channel_dim, -1)[..., 0], channels, sums.dim() - 1)
        if ctx.needs_input_grad[2]:
            g_sums = (channels @ rows).unsqueeze(ctx.affine.channel_dim)
        return None, g_rows, g_sums


def _grouped(affine: Affine, matrix: Tensor) -> tuple[Tensor, int]:
    """A weight as [groups, outputs, inputs, taps...], or [groups, inputs, outputs, taps...] if transposed, and the
    dimension of the outputs."""
    return matrix.unflatten(0, (affine.groups, -1)), 2 if affine.transposed else 1
