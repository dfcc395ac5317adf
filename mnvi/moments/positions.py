r"""Positions share weights: how the covariance between two positions of a channel goes through a network.

The same noisy weights act at every position, so the errors of two positions go together, and an average over positions
does not remove them. One number for each example and channel describes this: ``shared``, the mean covariance c between
two different positions of the channel. It broadcasts against the value: its size is 1 in the dimensions of the
positions, e.g. [batch, channels, 1, 1] beside an image and [batch, 1, channels] beside tokens.

This file has what follows from c alone: sums, products and new shapes. ``position_weights`` says how c goes through
layers with random weights, ``position_slopes`` how it goes through elementwise functions; ``position_rows`` picks some
positions that stand for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mnvi.moments.normal import SMALLEST_VARIANCE
from mnvi.moments.position_rows import over_pairs, position_dims, rows


def over_positions(values: Tensor, shared: Tensor) -> Tensor:
    """Mean over the positions, in the shape of ``shared``.

    Example:
        >>> import torch
        >>> over_positions(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 1))
        tensor([[2.]])
    """
    dims = position_dims(values.shape, shared)
    return values.mean(dims, keepdim=True) if dims else values


def correlation(var: Tensor, shared: Tensor) -> Tensor:
    r"""Correlation between two of n positions, :math:`r = c / \bar v`, in the shape of ``shared``.

    It is between :math:`-1/(n-1)`, where the sum of all positions is known, and 1.

    Example:
        >>> import torch
        >>> correlation(torch.tensor([[1.0, 3.0]]), torch.ones(1, 1))
        tensor([[0.5000]])
    """
    count = math.prod([var.shape[d] for d in position_dims(var.shape, shared)])
    return (shared / over_positions(var, shared).clamp(min=SMALLEST_VARIANCE)).clamp(-1.0 / max(count - 1, 1), 1.0)


def of_a_sum(variance: Tensor, total: Tensor, square: Tensor, correlation: Tensor) -> Tensor:
    r"""Variance of weighted sums over positions that are correlated.

    .. math:: V = \Big[1 + r\Big(\frac{(\sum w)^2}{\sum w^2} - 1\Big)\Big] \sum_i w_i^2 v_i

    For an average over n entries of equal variance this is :math:`v/n + (1 - 1/n)c`.

    Args:
        variance: :math:`\sum w^2 v`, of independent positions.
        total, square: :math:`\sum w` and :math:`\sum w^2`.
        correlation: r.

    Example:
        >>> import torch
        >>> of_a_sum(torch.tensor(0.5), torch.tensor(1.0), torch.tensor(0.5), torch.tensor(1.0))
        tensor(1.)
    """
    return variance * (1 + correlation * (total.square() / square.clamp(min=SMALLEST_VARIANCE) - 1))


def mean_product(mean: Tensor, shared: Tensor) -> Tensor:
    r"""Mean over pairs of different positions of :math:`\mu_p\mu_q`.

    Example:
        >>> import torch
        >>> mean_product(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 1))
        tensor([[3.]])
    """
    dims = position_dims(mean.shape, shared)
    count = math.prod([mean.shape[d] for d in dims])
    if count == 1:
        return mean.square()
    return (over_pairs(rows(mean, dims)) / (count * (count - 1))).view(shared.shape)


def product(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    r"""Covariance between positions of a product of independent factors.

    .. math:: c' = \overline{x_p x_q}\,c_y + \overline{y_p y_q}\,c_x + c_x c_y

    Args:
        first, second: the mean product of two positions (:func:`mean_product`) and c of each factor.

    Example:
        >>> import torch
        >>> one, four = torch.ones(1), torch.full((1,), 4.0)
        >>> product((one, one), (four, one))
        tensor([6.])
    """
    (x, shared_x), (y, shared_y) = first, second
    return x * shared_y + y * shared_x + shared_x * shared_y


def weighted(weights: Tensor, var: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    r"""Sums over positions with known weights, as in attention: what correlation adds to the variances, and c.

    .. math:: V_t = c\Big[\Big(\sum_s a_{ts}\Big)^2 - \sum_s a_{ts}^2\Big], \qquad
              c' = c\Big[\Big(\sum_s \bar a_s\Big)^2 - \sum_s \bar a_s^2\Big] + \sum_s \bar a_s^2 v_s

    Sums of the same entries covary even if the entries are independent; :math:`\bar a_s` is the mean weight of entry s.

    Args:
        weights: a, [..., outputs, inputs].
        var, shared: of the inputs, [..., inputs, channels] and [..., 1, channels].

    Example:
        >>> import torch
        >>> weighted(torch.full((2, 2), 0.5), torch.ones(2, 1), torch.zeros(1, 1))
        (tensor([[0.],
                [0.]]), tensor([[0.5000]]))
    """
    average = weights.mean(-2, keepdim=True)
    shared = correlation(var, shared) * over_positions(var, shared)  # within its bounds
    return shared * _cross(weights), shared * _cross(average) + torch.matmul(average.square(), var)


def _cross(weights: Tensor) -> Tensor:
    return weights.sum(-1, keepdim=True).square() - weights.square().sum(-1, keepdim=True)


def reshaped(shared: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor | None:
    """``shared`` for a value whose shape changed, its entries staying in order; None if positions and channels mix.

    Example:
        >>> import torch
        >>> reshaped(torch.zeros(2, 3, 1, 1), (2, 3, 4, 4), (2, 3, 16)).shape
        torch.Size([2, 3, 1])
        >>> reshaped(torch.zeros(2, 3, 1, 1), (2, 3, 4, 4), (2, 48))
    """
    if 0 in before:
        return None
    sizes: list[int] = []
    start, end = 0, 0
    while start < len(before) or end < len(after):
        olds, news = [start], [end]
        left, right = _size(before, start), _size(after, end)
        while left != right:  # the next group of dimensions that turns into another one of the same size
            if left < right:
                olds.append(olds[-1] + 1)
                left *= before[olds[-1]]
            else:
                news.append(news[-1] + 1)
                right *= after[news[-1]]
        kept = [shared.shape[d] for d in olds if d < len(before) and before[d] != 1]
        whole = [before[d] for d in olds if d < len(before) and before[d] != 1]
        if all(size == 1 for size in kept):
            sizes += [1 for d in news if d < len(after)]
        elif kept == whole:
            sizes += [after[d] for d in news if d < len(after)]
        else:
            return None
        start, end = olds[-1] + 1, news[-1] + 1
    return shared.reshape(sizes)


def _size(shape: Sequence[int], dim: int) -> int:
    return shape[dim] if dim < len(shape) else 1
