"""A bilinear form with random weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments.precision import full_precision, widened


def bilinear(
    left: tuple[Tensor, Tensor | None],
    right: tuple[Tensor, Tensor | None],
    weight: Tensor,
    bias: Tensor | None,
    spread: Tensor,
    bias_spread: Tensor | None,
) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`y_k = x^\top W_k z + b_k` with weights :math:`\mathcal N(M, S)`; exact for independent inputs.

    .. math::
        E_k = x^\top M_k z + b_k, \qquad
        V_k = \sum_{ij} S_{kij}(x_i^2 + v_i)(z_j^2 + u_j) + \sum_i v_i (M_k z)_i^2 + \sum_j u_j (M_k^\top x)_j^2
              + \sum_{ij} M_{kij}^2 v_i u_j + s_k

    Args:
        left: means x [..., in1] and variances v of the first input; None for a known input.
        right: means z [..., in2] and variances u of the second input; None for a known input.
        weight, bias: M [out, in1, in2] and b [out].
        spread: S, in the shape of ``weight``.
        bias_spread: :math:`s`, or None.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> bilinear((one, one), (one, None), torch.ones(1, 1, 1), None, torch.ones(1, 1, 1), None)
        (tensor([[1.]]), tensor([[3.]]))
    """
    (x, v), (z, u) = left, right
    mean = F.bilinear(x, z, weight, bias)
    with full_precision(x):
        x, z, weight, spread = widened(x), widened(z), widened(weight), widened(spread)
        v, u = None if v is None else widened(v), None if u is None else widened(u)
        squares = [square if var is None else square + var for square, var in ((x.square(), v), (z.square(), u))]
        variance = F.bilinear(squares[0], squares[1], spread, None if bias_spread is None else widened(bias_spread))
        if v is not None:
            variance = variance + torch.einsum(
                "...ki,...i->...k", torch.einsum("kij,...j->...ki", weight, z).square(), v
            )
        if u is not None:
            variance = variance + torch.einsum(
                "...kj,...j->...k", torch.einsum("kij,...i->...kj", weight, x).square(), u
            )
        if v is not None and u is not None:
            variance = variance + F.bilinear(v, u, weight.square())
    return mean, variance
