"""Dropout: the identity in evaluation; in training its variance, or one sampled mask, by ``mnvi.options(dropout=...)``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.gaussian import RULES, Gaussian
from mnvi.moments import dropout as moments
from mnvi.settings import current


def _dropout(function: Callable, variance: Callable, masked: Callable, trains_by_default: bool) -> Callable:
    def answer(
        input: Gaussian, p: float = 0.5, training: bool = trains_by_default, train: bool | None = None,
        inplace: bool = False,
    ) -> Gaussian:  # fmt: skip
        if not 0 <= p <= 1:
            raise ValueError(f"dropout: p={p} must be a probability between 0 and 1")
        if not (training if train is None else train) or p == 0:
            return input
        if current.value.dropout == "variance":
            return Gaussian.trusted(*variance(input.mean, input.var, p))
        return Gaussian.trusted(*masked(function, input.mean, input.var, p))

    return answer


def _scaled(function: Callable, mean: Tensor, var: Tensor, p: float) -> tuple[Tensor, Tensor]:
    mask = function(torch.ones_like(mean), p, True)  # 0 or 1/(1-p), for both streams the same
    return mean * mask, var * mask.to(var.dtype).square()


for _names, _variance, _masked, _default in (
    ("dropout dropout1d dropout2d dropout3d feature_dropout", moments.dropout, _scaled, True),
):
    for _name in _names.split():
        for _namespace in (F, torch):
            if _function := getattr(_namespace, _name, None):
                RULES.rule(_function)(_dropout(_function, _variance, _masked, _default))
