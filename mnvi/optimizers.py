"""The optimisers of :mod:`mnvi.replicas`: torch's, for many networks whose parameters are the rows of one array."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mnvi.recipe import Recipe


class SGD:
    """torch's SGD."""

    def __init__(self, flat: Tensor, recipe: Recipe) -> None:
        self.flat, self.recipe = flat, recipe
        self.velocity = torch.zeros_like(flat) if recipe.momentum else None

    def step(self, gradient: Tensor, rate: float) -> None:
        recipe = self.recipe
        if recipe.weight_decay:
            gradient.add_(self.flat, alpha=recipe.weight_decay)
        if self.velocity is not None:
            self.velocity.mul_(recipe.momentum).add_(gradient)
            gradient = gradient.add_(self.velocity, alpha=recipe.momentum) if recipe.nesterov else self.velocity
        self.flat.add_(gradient, alpha=-rate)


class Adam:
    """torch's Adam, and AMSGrad."""

    FIRST, SECOND, SMALL = 0.9, 0.999, 1e-8  # torch's defaults

    def __init__(self, flat: Tensor, recipe: Recipe) -> None:
        self.flat, self.recipe, self.steps = flat, recipe, 0
        self.first, self.second = torch.zeros_like(flat), torch.zeros_like(flat)
        self.largest = torch.zeros_like(flat) if recipe.optimizer == "amsgrad" else None

    def step(self, gradient: Tensor, rate: float) -> None:
        self.steps += 1
        if self.recipe.weight_decay:
            gradient.add_(self.flat, alpha=self.recipe.weight_decay)
        self.first.lerp_(gradient, 1 - self.FIRST)
        self.second.mul_(self.SECOND).addcmul_(gradient, gradient, value=1 - self.SECOND)
        second = self.second
        if self.largest is not None:
            second = torch.maximum(self.largest, second, out=self.largest)
        scale = second.sqrt().div_(math.sqrt(1 - self.SECOND**self.steps)).add_(self.SMALL)
        self.flat.addcdiv_(self.first, scale, value=-rate / (1 - self.FIRST**self.steps))


OPTIMIZERS: Mapping[str, type[SGD] | type[Adam]] = {"sgd": SGD, "adam": Adam, "amsgrad": Adam}
