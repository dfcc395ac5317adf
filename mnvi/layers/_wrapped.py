"""Bases of modules that need a word for ``torch.fx``, which finds the batch norms that fold."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import nn


class Wrapped(nn.Module):
    """A network whose output is changed afterwards. Arguments go to ``net`` as they are.

    :func:`mnvi.optimize_for_inference` looks inside: ``torch.fx`` cannot follow ``*args``.
    """

    net: nn.Module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.changed(self.net(*args, **kwargs))

    @abstractmethod
    def changed(self, out: Any) -> Any:
        """What becomes of the network's output."""


class OneOperation(nn.Module):
    """A module whose forward pass ``torch.fx`` takes as one operation, because it makes values that are no tensors."""
