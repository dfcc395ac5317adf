r"""Exponents that stay finite: the identity where numbers are ordinary, a logarithm far outside.

A head that predicts a logarithm (of a variance, of a rate) goes through :math:`e^x`. Inputs that nobody has scaled make
the head hundreds or thousands large, and :math:`e^x` overflows. :func:`bounded` replaces :math:`x` before the
exponential:

.. math::
    g(x) = x \;\text{ for } |x| \le a, \qquad
    g(x) = \operatorname{sign}(x)\,\bigl(a + \log(1 + |x| - a)\bigr) \;\text{ beyond}

Beyond :math:`a` the exponential :math:`e^{g(x)} = e^a (1 + x - a)` continues as a straight line with the slope that
it has at :math:`a`, and :math:`e^{g(-x)} = 1/e^{g(x)}`. So :math:`g` is smooth to first order, its slope
:math:`1/(1 + |x| - a)` is never zero, and training can come back from any distance.

Why :math:`a = \tfrac14 \log(\text{largest number})`, 22.2 in float32 and 177.4 in float64: a gradient is a product of
:math:`e^{g}`, a squared error and activations, and optimisers such as Adam square it. With a quarter of the exponents
for :math:`e^{g}`, errors and activations may use another quarter before the square overflows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def limit(dtype: torch.dtype) -> float:
    """The largest exponent that :func:`bounded` leaves as it is.

    Example:
        >>> import torch
        >>> round(limit(torch.float32), 2), round(limit(torch.float64), 2)
        (22.18, 177.45)
    """
    return 0.25 * math.log(torch.finfo(dtype).max)


def bounded(exponent: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """:math:`g(x)`: the same number up to :func:`limit`, to the last bit; a logarithm of the excess beyond.

    Args:
        exponent: what an exponential is about to be taken of; float32 or float64.
        dtype: the dtype whose limit applies, if another: of a float32 value that is being computed in float64.

    Example:
        >>> import torch
        >>> bounded(torch.tensor([-3.0, 22.0, 100.0, -1e30]))
        tensor([ -3.0000,  22.0000,  26.5479, -91.2583])
    """
    largest = limit(dtype or exponent.dtype)
    inside = exponent.clamp(-largest, largest)
    excess = exponent - inside
    return inside + excess.sign() * torch.log1p(excess.abs())
