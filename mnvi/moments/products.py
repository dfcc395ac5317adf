"""Sums and products of independent Gaussians."""

from __future__ import annotations

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
