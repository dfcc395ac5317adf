"""Rules of :class:`mnvi.Gaussian`: which moment function answers which torch function.

The table of :class:`mnvi.JointGaussian` is in ``joint``.

>>> import torch, mnvi
>>> mnvi.rules.has_rule(torch.relu)
True
"""

from __future__ import annotations

from collections.abc import Callable

from mnvi.rules import (  # noqa: F401  (importing a family fills its table)
    activations,
    arithmetic,
    attention,
    contractions,
    dependence,
    dropout,
    einops_backend,
    extremes,
    fourier,
    interpolation,
    joint,
    known_weights,
    normalization,
    norms,
    ordering,
    pooling,
    position_shapes,
    positions,
    positive,
    scattering,
    shapes,
)
from mnvi.rules.table import RULES

__all__ = ["has_rule", "rule"]


def rule(*functions: Callable) -> Callable[[Callable], Callable]:
    """Decorator: the decorated function answers these torch functions when one of their arguments is a ``Gaussian``.

    The decorated function gets the arguments of the original call and returns the ``Gaussian`` of the result. A later
    rule for the same function replaces an earlier one. To use a function of your own, wrap it in
    :func:`mnvi.elementwise`.

    Args:
        functions: the callables as torch sees them, e.g. ``torch.erf, torch.Tensor.erf``.

    Example:
        >>> import torch, mnvi
        >>> @mnvi.rule(torch.trace, torch.Tensor.trace)
        ... def trace(x):
        ...     return mnvi.Gaussian(x.mean.trace(), x.var.trace())
        >>> torch.trace(mnvi.Gaussian(torch.eye(2), torch.ones(2, 2))).var
        tensor(2.)
    """
    return RULES.rule(*functions)


def has_rule(function: Callable) -> bool:
    """Whether a function has a rule for a ``Gaussian``.

    Args:
        function: the callable as torch sees it, e.g. ``torch.erf``; each of its spellings has its own entry.

    Example:
        >>> import torch, mnvi.rules
        >>> mnvi.rules.has_rule(torch.relu), mnvi.rules.has_rule(torch.linalg.inv)
        (True, False)
    """
    return function in RULES
