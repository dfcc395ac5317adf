"""Dropout: the identity in evaluation; in training ``mnvi.options(dropout=...)`` chooses variance or sampling."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments import dropout as moments
from mnvi.moments.checking import check_number
from mnvi.rules.options import current
from mnvi.rules.table import RULES
from mnvi.values.gaussian import Gaussian


def _dropout(sampled: Callable, variance: Callable, trains_by_default: bool) -> Callable:
    def answer(input: Gaussian, p: float = 0.5, training: bool = trains_by_default, inplace: bool = False) -> Gaussian:
        check_number("dropout: p", p, least=0, most=1)
        if not training or p == 0:
            return input
        if current().dropout == "variance":
            return Gaussian.trusted(*variance(input.mean, input.var, p))
        return Gaussian.trusted(*sampled(input.mean, input.var, p))

    return answer


def _outside_functional(answer: Callable) -> Callable:
    """The same under ``torch`` itself, where arguments have other names and no defaults."""

    def direct(input: Gaussian, p: float, train: bool) -> Gaussian:
        out: Gaussian = answer(input, p, train)
        return out

    return direct


def _one_mask(function: Callable) -> Callable:
    """Draw one mask, 0 or 1/(1-p), with the function itself and apply it to mean and variance."""

    def sampled(mean: Tensor, var: Tensor, p: float) -> tuple[Tensor, Tensor]:
        mask = function(torch.ones_like(mean), p, True)
        return mean * mask, var * mask.to(var.dtype).square()

    return sampled


def _alpha_mask(per_channel: bool) -> Callable:
    def sampled(mean: Tensor, var: Tensor, p: float) -> tuple[Tensor, Tensor]:
        shape = (*mean.shape[:2], *(1 for _ in mean.shape[2:])) if per_channel else mean.shape
        return moments.masked_alpha_dropout(mean, var, p, torch.rand(shape, device=mean.device) >= p)

    return sampled


for _name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
    _function = getattr(F, _name)
    RULES.rule(_function)(_dropout(_one_mask(_function), moments.dropout, True))
for _function in (torch.dropout, torch.feature_dropout):
    RULES.rule(_function)(_outside_functional(_dropout(_one_mask(_function), moments.dropout, True)))
for _name, _per_channel in (("alpha_dropout", False), ("feature_alpha_dropout", True)):
    _handler = _dropout(_alpha_mask(_per_channel), moments.alpha_dropout, False)
    RULES.rule(getattr(F, _name))(_handler)
    RULES.rule(getattr(torch, _name))(_outside_functional(_handler))
