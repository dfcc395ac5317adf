"""Normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.gaussian import RULES, Gaussian
from mnvi.moments import normalization


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
    return Gaussian.trusted(
        *normalization.batch_norm(x.mean, x.var, running_mean, running_var, weight, bias, training, momentum, eps)
    )


def _normalised(moments: Callable) -> Callable:
    def answer(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
        return Gaussian.trusted(*moments(input.mean, input.var, *args, **kwargs))

    return answer


for _function, _moments in (
    (F.batch_norm, normalization.batch_norm),
    (F.layer_norm, normalization.layer_norm),
    (F.rms_norm, normalization.rms_norm),
    (torch.rms_norm, normalization.rms_norm),
    (F.group_norm, normalization.group_norm),
    (F.instance_norm, normalization.instance_norm),
):
    RULES.rule(_function)(_normalised(_moments))


@RULES.rule(torch.layer_norm)
def native_layer_norm(
    x: Gaussian,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Gaussian:
    return Gaussian.trusted(*normalization.layer_norm(x.mean, x.var, normalized_shape, weight, bias, eps))


@RULES.rule(torch.group_norm)
def native_group_norm(
    x: Gaussian, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Gaussian:
    return Gaussian.trusted(*normalization.group_norm(x.mean, x.var, num_groups, weight, bias, eps))


@RULES.rule(F.normalize)
def normalize(input: Gaussian, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Gaussian:
    return Gaussian.trusted(*normalization.normalize(input.mean, input.var, p, dim, eps))
