"""Moments of a function of one value that uses it several times, such as ``x * torch.sigmoid(x)``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mnvi.moments.quadrature import along, gauss_hermite, over_nodes
from mnvi.rules.elementwise import DEFAULT_ORDER
from mnvi.rules.options import current
from mnvi.rules.recognition import keeps_its_sign, recognised
from mnvi.rules.steps import Path, Step
from mnvi.values.gaussian import Gaussian

_NODES = gauss_hermite(DEFAULT_ORDER)
_DIVISIONS = ("div", "divide", "true_divide")
_ON_THE_POSITIVE_LINE = ("reciprocal", "sqrt", "rsqrt", "log", "log2", "log10", "log1p")


def composite(step: Step, mean: Tensor, var: Tensor) -> Gaussian:
    r"""The Gaussian of :math:`h(Z)`, where each entry of the result depends on one entry of Z.

    - A well-known activation has the moments of torch's own function.
    - An affine function is exact: :math:`h(\mu)` and :math:`h'^2 v`.
    - A quotient whose divisor may be zero has no moments, nor has a root or logarithm whose argument may be negative;
      the first-order rule gives :math:`h(\mu)` and :math:`h'(\mu)^2 v`, as for every division by a ``Gaussian``.
    - Everything else is a sum over the nodes of Gauss–Hermite quadrature, as in :func:`mnvi.elementwise`.

    Args:
        step: the function h.
        mean, var: the moments of Z.
    """
    move = step.paths[0].moved_only()
    known = None if step.has_tensors else recognised(step)
    if known is not None:
        return known(Gaussian.trusted(move(mean), move(var)))
    if step.is_affine or current().activation == "taylor" or _may_leave_its_domain(step):
        return Gaussian.trusted(*along(step, move, mean, var))
    return Gaussian.trusted(*over_nodes(step, mean, var, _NODES))


def _may_leave_its_domain(step: Step) -> bool:
    """Whether a divisor may be zero, or the argument of a root or logarithm negative, at a node far from the mean."""
    operand: Any = None
    if step.known.plain in _DIVISIONS:
        operand = step.args[1]
    elif step.known.plain in _ON_THE_POSITIVE_LINE or (step.known.plain == "pow" and not _is_whole(step)):
        operand = step.paths[0]
    if isinstance(operand, Path) and not keeps_its_sign(operand):
        return True
    return any(_may_leave_its_domain(inner) for path in step.paths for inner in path.steps)


def _is_whole(power: Step) -> bool:
    exponent = power.kwargs.get("exponent", power.args[-1])
    return isinstance(exponent, int | float) and exponent >= 1 and exponent == int(exponent)
