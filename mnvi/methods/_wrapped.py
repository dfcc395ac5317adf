"""The base of modules that change what a network returns."""

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
