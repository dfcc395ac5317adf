r"""Squared weights as outer products.

A weight's matrix of squares or variances, :math:`A \ge 0` with output channel i, input channel j and tap k, is nearly
an outer product :math:`a\,b^\top`:

.. math:: a_i = \sum_{jk} A_{ijk}, \qquad b_{jk} = \frac{\sum_i A_{ijk}}{\sum_{ijk} A_{ijk}}

This one has the row sums and the column sums of A. The channels of a group have factors of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mnvi.moments.affine import Affine

LARGEST_MISS = 0.3
"""A layer takes more terms, and stays exact if ``MOST_TERMS`` do not suffice, where :func:`miss` is larger."""
MOST_TERMS = 4
"""Terms of a layer at inference; training uses one."""
_UPDATES = 100
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


def total(affine: Affine, terms: Sequence[Factors]) -> Tensor:
    """:math:`\\sum_r a_r b_r^\\top`, in the shape of the weight.

    Example:
        >>> import torch
        >>> total(Affine(), [Factors(torch.tensor([4.0]), torch.tensor([[0.25, 0.75]]))] * 2)
        tensor([[2., 6.]])
    """
    first, *more = (product(affine, term) for term in terms)
    return sum(more, first)


def miss(affine: Affine, matrix: Tensor, terms: Sequence[Factors] | None = None) -> Tensor:
    r"""How far outer products are from the matrix: :math:`\|A - \sum_r a_r b_r^\top\|_F \,/\, \|\sum_r a_r\|`.

    For inputs whose second moments are independent with a standard deviation as large as their mean, this is the error
    of the outputs' variances (root mean square) relative to their size. Gaussian weights give
    :math:`\sqrt{2/\text{fan-in}}`.

    Args:
        affine: the layer's linear operation.
        matrix: A, in the shape of the weight.
        terms: the factors; None for those of :func:`factors`.

    Example:
        >>> import torch
        >>> miss(Affine(), torch.tensor([[1.0, 3.0], [2.0, 6.0]])), miss(Affine(), torch.eye(2))
        (tensor(0.), tensor(0.7071))
    """
    terms = [factors(affine, matrix)] if terms is None else terms
    size = torch.stack([term.rows for term in terms]).sum(0).norm().clamp(min=torch.finfo(matrix.dtype).tiny)
    return (matrix - total(affine, terms)).norm() / size


def few_terms(affine: Affine, matrix: Tensor) -> list[Factors]:
    r"""The fewest non-negative terms :math:`\sum_r a_r b_r^\top` that miss by ``LARGEST_MISS`` or less.

    One term is that of :func:`factors`. Several minimise the divergence
    :math:`\sum A\log(A/\hat A) - A + \hat A` by the multiplicative updates of Lee and Seung, which keep every row sum.
    If ``MOST_TERMS`` terms still miss by more, these are the result.

    Args:
        affine: the layer's linear operation.
        matrix: A, in the shape of the weight.

    Example:
        >>> import torch
        >>> len(few_terms(Affine(), torch.eye(2))), len(few_terms(Affine(), torch.ones(2, 2)))
        (2, 1)
    """
    terms = [factors(affine, matrix)]
    while len(terms) < MOST_TERMS and miss(affine, matrix, terms) > LARGEST_MISS:
        terms = _non_negative_terms(affine, matrix, len(terms) + 1)
    return terms


def _non_negative_terms(affine: Affine, matrix: Tensor, count: int) -> list[Factors]:
    grouped, outputs = _grouped(affine, matrix)
    moved = grouped.movedim(outputs, 1)
    flat = moved.flatten(2)  # [groups, outputs, inputs · taps]
    tiny = torch.finfo(matrix.dtype).tiny
    started = torch.Generator("cpu").manual_seed(0)
    columns = torch.rand(len(flat), count, flat.shape[2], generator=started, device="cpu").to(flat) + 0.5
    columns = columns * flat.sum(1, keepdim=True)
    columns = columns / columns.sum(2, keepdim=True).clamp(min=tiny)
    rows = flat.sum(2, keepdim=True).expand(-1, -1, count) / count
    for _ in range(_UPDATES):
        columns = columns * (rows.mT @ (flat / (rows @ columns).clamp(min=tiny)))
        columns = columns / columns.sum(2, keepdim=True).clamp(min=tiny)
        rows = rows * ((flat / (rows @ columns).clamp(min=tiny)) @ columns.mT)
    shape = (len(flat), 1, *moved.shape[2:])
    return [
        Factors(rows[:, :, r].flatten(), columns[:, r].reshape(shape).movedim(1, outputs).flatten(0, 1))
        for r in range(count)
    ]


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
    fan_in = weight.numel() // outputs
    return outputs // affine.groups >= FEWEST_OUTPUTS and math.sqrt(2 / fan_in) <= LARGEST_MISS


def is_small_output(affine: Affine, weight: Tensor) -> bool:
    """Whether a layer of this shape stays exact where it is a network's last layer.

    Example:
        >>> import torch
        >>> is_small_output(Affine(), torch.ones(1000, 512))
        True
    """
    return affine.out_units(weight) <= MOST_LAST_OUTPUTS


def _grouped(affine: Affine, matrix: Tensor) -> tuple[Tensor, int]:
    """A weight as [groups, outputs, inputs, taps...], or [groups, inputs, outputs, taps...] if transposed, and the
    dimension of the outputs."""
    return matrix.unflatten(0, (affine.groups, -1)), 2 if affine.transposed else 1
