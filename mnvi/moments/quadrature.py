r"""Moments of any elementwise function: Gauss–Hermite quadrature, and the first-order Taylor rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mnvi.moments._torch import is_traced
from mnvi.moments.normal import safe_sqrt

Function = Callable[[Tensor], Tensor]


def gauss_hermite(order: int) -> list[tuple[float, float]]:
    r"""Nodes and weights with :math:`E[f(T)] \approx \sum_i w_i f(t_i)` for a standard Gaussian ``T``.

    Exact for polynomials of degree :math:`2\,\text{order} - 1`. The nodes are the eigenvalues of the symmetric
    tridiagonal matrix of the Hermite recurrence (Golub and Welsch).

    Example:
        >>> [(round(t, 4), round(w, 4)) for t, w in gauss_hermite(3)]
        [(-1.7321, 0.1667), (0.0, 0.6667), (1.7321, 0.1667)]
    """
    return _golub_welsch([math.sqrt(k) for k in range(1, order)])


def gauss_legendre(order: int) -> list[tuple[float, float]]:
    r"""Nodes and weights for the mean of a function over :math:`[0, 1]`.

    Example:
        >>> [(round(t, 4), round(w, 4)) for t, w in gauss_legendre(2)]
        [(0.2113, 0.5), (0.7887, 0.5)]
    """
    on_both_sides = _golub_welsch([k / math.sqrt(4 * k * k - 1) for k in range(1, order)])
    return [(0.5 + 0.5 * node, weight) for node, weight in on_both_sides]


def _golub_welsch(off_diagonal: list[float]) -> list[tuple[float, float]]:
    matrix = torch.diag(torch.tensor(off_diagonal, dtype=torch.float64, device="cpu"), 1)
    nodes, vectors = torch.linalg.eigh(matrix + matrix.T)
    nodes = 0.5 * (nodes - nodes.flip(0))  # symmetric to the last bit, so that odd moments vanish
    weights = vectors[0].square()
    weights = 0.5 * (weights + weights.flip(0))
    return list(zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True))


def column(values: Iterable[float], like: Tensor) -> Tensor:
    """Numbers along a new first dimension, ready to multiply a tensor with the dtype and dimensions of ``like``.

    Example:
        >>> import torch
        >>> column([0.5, 2.0], torch.ones(3)) * torch.ones(3)
        tensor([[0.5000, 0.5000, 0.5000],
                [2.0000, 2.0000, 2.0000]])
    """
    return torch.tensor(list(values), dtype=like.dtype, device=like.device).view(-1, *[1] * like.dim())


def quadrature_moments(
    function: Function, mean: Tensor, var: Tensor, nodes: list[tuple[float, float]]
) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`f(Z)` by a weighted sum over nodes, taken around :math:`f(\mu)`.

    .. math:: g_i = f(\mu + \sigma t_i) - f(\mu), \qquad E = f(\mu) + \sum_i w_i g_i, \qquad
              V = \sum_i w_i g_i^2 - \Bigl(\sum_i w_i g_i\Bigr)^2

    The difference loses no digits: :math:`f(\mu)` is the median of a monotone :math:`f(Z)`, and a mean is never further
    from the median than one standard deviation. In eager mode the backward pass evaluates ``function`` again, node by
    node, instead of keeping every value.

    Args:
        function: any elementwise function of a tensor; it may hold parameters; if they are wider than the mean, so is
            the result.
        mean: :math:`\mu`.
        var: :math:`\sigma^2`.
        nodes: what :func:`gauss_hermite` returns.

    Example:
        >>> import torch
        >>> quadrature_moments(torch.square, torch.ones(1), torch.ones(1), gauss_hermite(5))
        (tensor([2.]), tensor([6.]))
    """
    wide = mean.to(var.dtype)
    sigma = safe_sqrt(var)
    centre = function(wide)
    if centre.shape != wide.shape:
        wide, sigma = _repeated(function, wide, sigma, centre.shape)
    expectation, variance = _summed(function, wide, sigma, centre, nodes)
    return expectation.to(mean.dtype), variance


def over_nodes(
    function: Function, mean: Tensor, var: Tensor, nodes: list[tuple[float, float]]
) -> tuple[Tensor, Tensor]:
    """As :func:`quadrature_moments`, for a function that may also move and repeat entries.

    Example:
        >>> import torch
        >>> over_nodes(lambda z: z.T * z.T, torch.ones(1, 2), torch.ones(1, 2), gauss_hermite(5))[0]
        tensor([[2.],
                [2.]])
    """
    wide = mean.to(var.dtype)
    expectation, variance = _summed(function, wide, safe_sqrt(var), function(wide), nodes)
    return expectation.to(mean.dtype), variance


def _summed(
    function: Function, mean: Tensor, sigma: Tensor, centre: Tensor, nodes: list[tuple[float, float]]
) -> tuple[Tensor, Tensor]:
    run = _forgetful if _remembers() else _plain
    first, second = torch.zeros_like(centre), torch.zeros_like(centre)
    for node, weight in nodes:
        once, squared = run(partial(_term, function, node, weight), mean, sigma, centre)
        first, second = first + once, second + squared
    return centre + first, (second - first.square()).clamp(min=0)


def _term(
    function: Function, node: float, weight: float, mean: Tensor, sigma: Tensor, centre: Tensor
) -> tuple[Tensor, Tensor]:
    step = function(mean + node * sigma) - centre
    return weight * step, weight * step.square()


def broadcasts(shape: torch.Size, wider: torch.Size) -> bool:
    """Whether a tensor of one shape can be expanded to the other."""
    pairs = zip(reversed(shape), reversed(wider), strict=False)
    return len(wider) >= len(shape) and all(size in (1, wide) for size, wide in pairs)


def _repeated(function: Function, mean: Tensor, spread: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Mean and variance, expanded to the result's shape; it is larger if the function closes over a wider tensor."""
    if not broadcasts(mean.shape, shape) or function(mean.expand(shape)).shape != shape:
        raise ValueError(
            f"not elementwise: it maps shape {tuple(mean.shape)} to {tuple(shape)}; write a rule for it with @mnvi.rule"
        )
    return mean.expand(shape), spread.expand(shape)


def _plain(function: Callable, *tensors: Tensor) -> Any:
    return function(*tensors)


def _forgetful(function: Callable, *tensors: Tensor) -> Any:
    return checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False, determinism_check="none")


def _remembers() -> bool:
    """Whether eager autograd would keep every intermediate value."""
    return torch.is_grad_enabled() and not is_traced()


def taylor_moments(function: Function, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r"""The first-order rule: :math:`E = f(\mu)`, :math:`V = f'(\mu)^2\,\sigma^2`.

    Args:
        function: as in :func:`quadrature_moments`; torch must be able to differentiate it.
        mean: :math:`\mu`.
        var: :math:`\sigma^2`.

    Example:
        >>> import torch
        >>> taylor_moments(torch.square, torch.ones(1), torch.ones(1))
        (tensor([1.]), tensor([4.]))
    """
    wide = mean.to(var.dtype)
    value, pull_back = torch.func.vjp(function, wide)[:2]
    if value.shape != wide.shape:  # repeat first: slopes of entries that the function repeats would add up
        wide, var = _repeated(function, wide, var, value.shape)
        value, pull_back = torch.func.vjp(function, wide)[:2]
    (slope,) = pull_back(torch.ones_like(value))  # an elementwise function has a diagonal Jacobian
    return value.to(mean.dtype), slope.square() * var


def along(function: Function, move: Function, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`taylor_moments`, for a function that may also move and repeat entries; exact if it is affine.

    Args:
        function: each entry of its result follows from one entry alone.
        move: moves entries as the function does, and changes nothing else.
        mean, var: the moments of its argument.

    Example:
        >>> import torch
        >>> along(lambda z: z.T * 3 - z.T, torch.t, torch.ones(1, 2), torch.ones(1, 2))[1]
        tensor([[4.],
                [4.]])
    """
    wide = mean.to(var.dtype)
    value, slope = torch.func.jvp(function, (wide,), (torch.ones_like(wide),))[:2]
    return value.to(mean.dtype), slope.square() * move(var)
