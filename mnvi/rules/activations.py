"""Elementwise functions."""

from __future__ import annotations

from mnvi.gaussian import RULES, Gaussian
from mnvi.moments.relu import relu as relu_moments
from mnvi.settings import current
from mnvi.registry import every


@RULES.rule(*every("relu"))
def relu(x: Gaussian, inplace: bool = False) -> Gaussian:
    return Gaussian.trusted(*relu_moments(x.mean, x.var, current.value.relu_floor))
