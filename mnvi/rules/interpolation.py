"""Interpolation, and values read at the points of a grid."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from mnvi.moments import grid_sampling, interpolation
from mnvi.moments.precision import full_precision
from mnvi.rules.table import RULES
from mnvi.values.gaussian import Gaussian


@RULES.rule(F.interpolate)
def interpolate(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
    with full_precision(input.var):
        return Gaussian.trusted(*interpolation.interpolate(input.mean, input.var, *args, **kwargs))


@RULES.rule(F.grid_sample)
def grid_sample(input: Any, grid: Any, *args: Any, **kwargs: Any) -> Gaussian:
    if not isinstance(input, Gaussian) or isinstance(grid, Gaussian):
        raise TypeError("grid_sample: the grid must be a tensor, got a Gaussian; pass its mean, grid.mean")
    with full_precision(input.var):
        return Gaussian.trusted(*grid_sampling.grid_sample(input.mean, input.var, grid, *args, **kwargs))
