"""Full covariances: the value that carries them through a fully connected network, DVI, and rules for them.

>>> import torch, mnvi
>>> dvi = mnvi.DVI(mnvi.convert(mnvi.models.mlp(3), mnvi.MeanField(mnvi.EmpiricalBayes())))
>>> out = dvi(torch.ones(5, 3))
>>> out.mean.shape, out.cov.shape
(torch.Size([5, 2]), torch.Size([5, 2, 2]))
"""

from __future__ import annotations

from collections.abc import Callable

from mnvi.methods.dvi import DVI
from mnvi.rules.table import JOINT_RULES
from mnvi.values.joint import JointGaussian

__all__ = ["DVI", "JointGaussian", "rule"]


def rule(*functions: Callable) -> Callable[[Callable], Callable]:
    """Decorator: answer these torch functions for a :class:`JointGaussian`; see :func:`mnvi.rule`.

    Args:
        functions: the callables as torch sees them, e.g. ``torch.flip, torch.Tensor.flip``.

    Example:
        >>> import torch, mnvi
        >>> @mnvi.covariance.rule(torch.flip)
        ... def flip(x, dims):
        ...     return mnvi.JointGaussian(x.mean.flip(-1), x.cov.flip(-1, -2))
        >>> torch.flip(mnvi.JointGaussian(torch.arange(2.0), torch.eye(2)), (-1,)).mean
        tensor([1., 0.])
    """
    return JOINT_RULES.rule(*functions)
