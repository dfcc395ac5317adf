"""Sums and products of independent Gaussians."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mnvi.moments.precision import widened


def product(mean_a: Tensor, var_a: Tensor, mean_b: Tensor, var_b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`AB` for independent factors; exact.

    .. math:: E = \mu_a\mu_b, \qquad V = v_a v_b + v_a\mu_b^2 + \mu_a^2 v_b

    Example:
        >>> import torch
        >>> one, two = torch.ones(1), torch.full((1,), 2.0)
        >>> product(two, one, two, one)
        (tensor([4.]), tensor([9.]))
    """
    return mean_a * mean_b, var_a * (var_b + widened(mean_b).square()) + widened(mean_a).square() * var_b


def square(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`Z^2`; exact: :math:`E = \mu^2 + v`, :math:`V = 2v^2 + 4\mu^2 v`.

    Example:
        >>> import torch
        >>> square(torch.ones(1), torch.ones(1))
        (tensor([2.]), tensor([6.]))
    """
    square = widened(mean).square()
    return (square + var).to(mean.dtype), 2 * var * (var + 2 * square)


def product_along(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    r"""Moments of the product of all entries along a dimension; exact for independent entries.

    .. math:: E = \prod_i \mu_i, \qquad V = \prod_i (\mu_i^2 + v_i) - \prod_i \mu_i^2

    :func:`product` joins neighbours, then the results, and so on: sums of positive terms, without the difference.

    Example:
        >>> import torch
        >>> product_along(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 1.0]), 0)
        (tensor(6.), tensor(44.))
    """
    mean, var = mean.movedim(dim, -1), var.movedim(dim, -1)
    if mean.shape[-1] == 0:
        return mean.new_ones(mean.shape[:-1]), var.new_zeros(var.shape[:-1])
    while mean.shape[-1] > 1:
        if mean.shape[-1] % 2:  # a known factor of one fills the last pair
            mean = torch.cat([mean, torch.ones_like(mean[..., :1])], -1)
            var = torch.cat([var, torch.zeros_like(var[..., :1])], -1)
        mean, var = product(mean[..., ::2], var[..., ::2], mean[..., 1::2], var[..., 1::2])
    return mean.squeeze(-1), var.squeeze(-1)


def running_product(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Moments of the product of an entry and all before it along a dimension; exact, each entry by itself.

    Each round joins a stretch of entries with the equally long one before it, so n entries take log n rounds.

    Example:
        >>> import torch
        >>> running_product(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 1.0]), 0)
        (tensor([1., 2., 6.]), tensor([ 1.,  4., 44.]))
    """
    mean, var = mean.movedim(dim, -1), var.movedim(dim, -1)
    reach = 1
    while reach < mean.shape[-1]:
        later = product(mean[..., :-reach], var[..., :-reach], mean[..., reach:], var[..., reach:])
        mean, var = (torch.cat([t[..., :reach], p], -1) for t, p in zip((mean, var), later, strict=True))
        reach *= 2
    return mean.movedim(-1, dim), var.movedim(-1, dim)


def outer(vectors: Sequence[Tensor]) -> Tensor:
    """The products of one entry of each vector, with a dimension for each; known numbers.

    Example:
        >>> import torch
        >>> outer([torch.tensor([1, 2]), torch.tensor([3, 4])])
        tensor([[3, 4],
                [6, 8]])
    """
    total = vectors[0]
    for vector in vectors[1:]:
        total = total[..., None] * vector
    return total
