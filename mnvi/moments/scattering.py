"""Sums, averages and extremes of the entries that an index sends to the same place."""

from __future__ import annotations

import torch
from torch import Tensor


def summed(
    mean: Tensor, var: Tensor, src_mean: Tensor, src_var: Tensor, dim: int, index: Tensor, include_self: bool = True
) -> tuple[Tensor, Tensor]:
    r"""Moments of the sum at each place p; exact for independent entries.

    .. math:: E_p = \mu_p + \sum_{i \to p} \mu_i, \qquad V_p = v_p + \sum_{i \to p} v_i

    Args:
        mean, var: moments of what the places held before; they count if ``include_self``, or if nothing is sent there.
        src_mean, src_var: moments of the entries that are sent.
        dim, index, include_self: as in ``torch.scatter_reduce``.

    Example:
        >>> import torch
        >>> one = torch.ones(3)
        >>> summed(torch.zeros(2), torch.zeros(2), one, one, 0, torch.tensor([0, 0, 1]))
        (tensor([2., 1.]), tensor([2., 1.]))
    """
    return _total(mean, src_mean, dim, index, include_self), _total(var, src_var, dim, index, include_self)


def averaged(
    mean: Tensor, var: Tensor, src_mean: Tensor, src_var: Tensor, dim: int, index: Tensor, include_self: bool = True
) -> tuple[Tensor, Tensor]:
    r"""Moments of the average of the n entries at each place; exact: those of :func:`summed`, over n and n².

    Example:
        >>> import torch
        >>> one = torch.ones(3)
        >>> averaged(torch.zeros(2), torch.zeros(2), one, one, 0, torch.tensor([0, 0, 1]), include_self=False)
        (tensor([1., 1.]), tensor([0.5000, 1.0000]))
    """
    count = _arrivals(var, dim, index) + (1 if include_self else 0)
    total = _total(var, src_var, dim, index, include_self)
    average = torch.scatter_reduce(mean, dim, index, src_mean, "mean", include_self=include_self)
    return average, total / count.clamp(min=1).square()


def extreme(
    mean: Tensor,
    var: Tensor,
    src_mean: Tensor,
    src_var: Tensor,
    dim: int,
    index: Tensor,
    reduce: str,
    include_self: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""The entry with the largest (``amax``) or smallest (``amin``) mean at each place, with its variance.

    This is the rule of :func:`mnvi.moments.pooling.max_pool`, with its errors. Of equal means it averages the
    variances.

    Example:
        >>> import torch
        >>> sent = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0.1, 0.3, 0.2])
        >>> extreme(torch.zeros(2), torch.zeros(2), *sent, 0, torch.tensor([0, 0, 1]), "amax")
        (tensor([3., 2.]), tensor([0.3000, 0.2000]))
    """
    best = torch.scatter_reduce(mean, dim, index, src_mean, reduce, include_self=include_self)
    sent = tuple(slice(size) for size in index.shape)  # what lies beyond the index is not sent
    wins = (src_mean[sent] == best.gather(dim, index)).to(var.dtype)
    stays = mean == best
    if not include_self:
        stays = stays & (_arrivals(var, dim, index) == 0)
    kept = stays.to(var.dtype)
    count = kept.scatter_add(dim, index, wins)
    return best, (kept * var).scatter_add(dim, index, wins * src_var[sent]) / count


def _total(values: Tensor, sent: Tensor, dim: int, index: Tensor, include_self: bool) -> Tensor:
    return torch.scatter_reduce(values, dim, index, sent, "sum", include_self=include_self)


def _arrivals(like: Tensor, dim: int, index: Tensor) -> Tensor:
    """How many entries are sent to each place."""
    return torch.zeros_like(like).scatter_add(dim, index, torch.ones_like(index, dtype=like.dtype))
