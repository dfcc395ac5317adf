"""Interpolation."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from mnvi.moments import interpolation
from mnvi.moments.precision import full_precision
from mnvi.rules.table import RULES
from mnvi.values.gaussian import Gaussian


@RULES.rule(F.interpolate)
def interpolate(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
    with full_precision(input.var):
        return Gaussian.trusted(*interpolation.interpolate(input.mean, input.var, *args, **kwargs))
