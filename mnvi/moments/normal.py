r"""The standard Gaussian: its density :math:`\varphi`, its tail :math:`\Phi(-a)`, and moments over the tail."""

from __future__ import annotations

import torch
from torch import Tensor

SQRT_HALF = 0.7071067811865476
INV_SQRT_2PI = 0.3989422804014327
SMALLEST_VARIANCE = 1e-30  # keeps μ/σ finite in float32 without being seen in any result


def bounded_sqrt(var: Tensor) -> Tensor:
    """A standard deviation that may be divided by; no gradient where there is no noise."""
    return var.clamp(min=SMALLEST_VARIANCE).sqrt()


def density(x: Tensor) -> Tensor:
    r""":math:`\varphi(x)`

    Example:
        >>> import torch
        >>> density(torch.zeros(1))
        tensor([0.3989])
    """
    return INV_SQRT_2PI * torch.exp(-0.5 * x * x)


def tail(x: Tensor) -> Tensor:
    r""":math:`\Phi(-x)`, with full relative precision for positive ``x``.

    Example:
        >>> import torch
        >>> tail(torch.tensor([0.0, 3.0]))
        tensor([0.5000, 0.0013])
    """
    return 0.5 * torch.erfc(SQRT_HALF * x)


def tail_and_excess(a: Tensor) -> tuple[Tensor, Tensor]:
    r"""For :math:`a \ge 0` the tail :math:`q = \Phi(-a)` and the excess
    :math:`t = E[(X - a)_+] = \varphi(a) - a\,q`.

    Example:
        >>> import torch
        >>> tail_and_excess(torch.zeros(1))
        (tensor([0.5000]), tensor([0.3989]))
    """
    q = tail(a)
    return q, (density(a) - a * q).clamp(min=0)
