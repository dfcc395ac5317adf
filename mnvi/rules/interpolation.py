"""Interpolation."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from mnvi.gaussian import RULES, Gaussian
from mnvi.moments import interpolation
from mnvi.precision import full_precision


@RULES.rule(F.interpolate)
def interpolate(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
    with full_precision(input.var):
        return Gaussian.trusted(*interpolation.interpolate(input.mean, input.var, *args, **kwargs))
