"""Normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments import batch_norms, normalization, windows
from mnvi.rules.options import current
from mnvi.rules.table import RULES
from mnvi.values.base import refuse_all_but_first
from mnvi.values.gaussian import Gaussian


def _normalised(moments: Callable) -> Callable[..., Gaussian]:
    def answer(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
        refuse_all_but_first(moments.__name__, input, (*args, *kwargs.values()))
        return Gaussian.trusted(*moments(input.mean, input.var, *args, **kwargs))

    return answer


def _batch_norm(input: Gaussian, *args: Any, **kwargs: Any) -> Gaussian:
    refuse_all_but_first("batch_norm", input, (*args, *kwargs.values()))
    constant = current().batch_norm == "constant_scale"
    return Gaussian.trusted(
        *batch_norms.batch_norm(input.mean, input.var, *args, **{**kwargs, "constant_scale": constant})
    )


_layer_norm = _normalised(normalization.layer_norm)
_group_norm = _normalised(normalization.group_norm)

for _functions, _answer in (
    ((F.batch_norm,), _batch_norm),
    ((F.layer_norm,), _layer_norm),
    ((F.rms_norm, torch.rms_norm), _normalised(normalization.rms_norm)),
    ((F.group_norm,), _group_norm),
    ((F.instance_norm,), _normalised(normalization.instance_norm)),
    ((F.local_response_norm,), _normalised(windows.local_response_norm)),
):
    RULES.rule(*_functions)(_answer)


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
    return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


@RULES.rule(torch.layer_norm)
def native_layer_norm(
    x: Gaussian,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Gaussian:
    return _layer_norm(x, normalized_shape, weight, bias, eps)


@RULES.rule(torch.group_norm)
def native_group_norm(
    x: Gaussian, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Gaussian:
    return _group_norm(x, num_groups, weight, bias, eps)


@RULES.rule(F.normalize)
def normalize(input: Gaussian, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Gaussian:
    return Gaussian.trusted(*normalization.normalize(input.mean, input.var, p, dim, eps))
