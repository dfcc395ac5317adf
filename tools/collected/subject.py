"""A network to try, and its inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import mnvi


@dataclass
class Subject:
    """A network and its inputs.

    Attributes:
        net: with random weights.
        inputs: arguments by position, or by name in a dictionary.
        size: what the table says about the inputs.
    """

    net: nn.Module
    inputs: tuple | dict[str, Any]
    size: str

    def run(self, net: nn.Module, dtype: torch.dtype = torch.float32) -> list[Any]:
        """Outputs of a network that are floating-point tensors or Gaussians, for these inputs in this precision."""
        inputs = pytree.tree_map(
            lambda value: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value,
            self.inputs,
        )
        out = net(**inputs) if isinstance(inputs, dict) else net(*inputs)
        leaves = pytree.tree_leaves(out, is_leaf=lambda value: isinstance(value, mnvi.Gaussian))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor | mnvi.Gaussian) and leaf.is_floating_point()]


def imported(package: str) -> Any:
    """A package that imports torchvision, which has to be importable beside a torch without CUDA."""
    importlib.import_module("mnvi._torchvision")
    return importlib.import_module(package)


Builder = Callable[[], Subject]
