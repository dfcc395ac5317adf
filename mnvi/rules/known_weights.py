"""Linear maps with known weights: the variance goes through the squared weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from mnvi.moments.precision import full_precision, widened
from mnvi.rules.table import RULES
from mnvi.values.gaussian import Gaussian

CONVOLUTIONS = (
    torch.conv1d, torch.conv2d, torch.conv3d,
    torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
)  # fmt: skip


def _linear_map(function: Callable) -> Callable:
    def answer(x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Gaussian:
        if not isinstance(x, Gaussian) or isinstance(weight, Gaussian) or isinstance(bias, Gaussian):
            raise TypeError(
                f"{function.__name__}: only the input may be a Gaussian; random weights belong to a posterior, "
                "see mnvi.convert"
            )
        mean = function(x.mean, weight, bias, *args, **kwargs)
        with full_precision(x.var):
            var = widened(x.var)
            var = function(var, weight.to(var.dtype).square(), None, *args, **kwargs)
        return Gaussian.trusted(mean, var)

    return answer


for _function in (F.linear, *CONVOLUTIONS):
    RULES.rule(_function)(_linear_map(_function))
