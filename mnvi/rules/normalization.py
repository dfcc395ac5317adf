"""Normalisations by the statistics of the means."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.gaussian import RULES, Gaussian
from mnvi.moments import normalization


@RULES.rule(F.batch_norm)
def batch_norm(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
    return Gaussian.trusted(*normalization.batch_norm(input.mean, input.var, *args, **kwargs))


@RULES.rule(torch.batch_norm)
def native_batch_norm(
    x: Gaussian,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Gaussian:
    return batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
