r"""The standard Gaussian: its density :math:`\varphi`, its tail :math:`\Phi(-a)`, and moments over the tail."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnvi.moments._torch import is_compiling

SQRT_HALF = 0.7071067811865476
INV_SQRT_2PI = 0.3989422804014327
SMALLEST_VARIANCE = 1e-30  # keeps μ/σ finite in float32; too small to show in any result
FAR = 9.0  # standard deviations: the tail beyond is 1e-19, and exp and erfc become slow where they underflow


class Deviation(NamedTuple):
    """Standard deviations σ of given variances and 1/σ, both positive, from whoever has them without a root each."""

    var: Tensor
    sigma: Tensor
    inverse: Tensor


def bounded_sqrt(var: Tensor, largest: float | None = None) -> Tensor:
    """Standard deviation, bounded away from zero and by ``largest``; no gradient where a bound applies."""
    return var.clamp(min=SMALLEST_VARIANCE, max=None if largest is None else largest**2).sqrt()


def safe_sqrt(var: Tensor) -> Tensor:
    """Square root whose gradient at zero is zero instead of infinite."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1.0).sqrt(), 0.0)


def proportional(variance: Tensor, var: Tensor, sigma: Tensor) -> Tensor:
    """A variance computed with the bounded ``sigma``, scaled to the real ``var``: smooth, and zero without noise."""
    return variance * (var / (sigma * sigma))


def choose(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """``torch.where`` for finite values; in eager mode several times faster, since it does not branch.

    Interpolation with a weight of exactly one or zero returns one of its ends, to the last bit.

    Example:
        >>> import torch
        >>> choose(torch.tensor([True, False]), torch.ones(2), torch.zeros(2))
        tensor([1., 0.])
    """
    if is_compiling():
        return torch.where(condition, yes, no)
    return torch.lerp(no, yes, condition.to(yes.dtype))


def density(x: Tensor) -> Tensor:
    r""":math:`\varphi(x)`

    Example:
        >>> import torch
        >>> density(torch.zeros(1))
        tensor([0.3989])
    """
    return INV_SQRT_2PI * torch.exp((-0.5 * x * x).clamp(min=-0.5 * FAR**2))


def tail(x: Tensor) -> Tensor:
    r""":math:`\Phi(-x)`, with full relative precision for positive ``x``.

    Example:
        >>> import torch
        >>> tail(torch.tensor([0.0, 3.0]))
        tensor([0.5000, 0.0013])
    """
    return 0.5 * torch.erfc((SQRT_HALF * x).clamp(max=SQRT_HALF * FAR))


def distance(difference: Tensor, sigma: Tensor) -> Tensor:
    """The distance in standard deviations, at most nine: anything further away has no effect.

    Example:
        >>> import torch
        >>> distance(torch.tensor([-1.0, 100.0]), torch.ones(2))
        tensor([1., 9.])
    """
    return (difference.abs() / sigma).clamp(max=FAR)


def tail_and_excess(a: Tensor) -> tuple[Tensor, Tensor]:
    r"""For :math:`0 \le a \le 9` the tail :math:`q = \Phi(-a)` and the excess
    :math:`t = E[(X - a)_+] = \varphi(a) - a\,q`.

    Example:
        >>> import torch
        >>> tail_and_excess(torch.zeros(1))
        (tensor([0.5000]), tensor([0.3989]))
    """
    q = 0.5 * torch.erfc(SQRT_HALF * a)
    return q, (INV_SQRT_2PI * torch.exp(-0.5 * a * a) - a * q).clamp(min=0)
