"""Elementwise functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from mnvi.elementwise import elementwise
from mnvi.gaussian import RULES, Gaussian
from mnvi.moments.quadrature import taylor_moments
from mnvi.moments.relu import relu as relu_moments
from mnvi.registry import every
from mnvi.settings import current

_BY_QUADRATURE: dict[str, Callable] = {
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": torch.clamp,
    "clip": torch.clamp,
    "leaky_relu": F.leaky_relu,
    "prelu": torch.prelu,
    "abs": torch.abs,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "cos": torch.cos,
}

for _name, _function in _BY_QUADRATURE.items():
    RULES.rule(*every(_name))(elementwise(_function))


@RULES.rule(*every("relu"))
def relu(x: Gaussian, inplace: bool = False) -> Gaussian:
    if current.value.activation == "taylor":
        return Gaussian.trusted(*taylor_moments(torch.relu, x.mean, x.var))
    return Gaussian.trusted(*relu_moments(x.mean, x.var, current.value.relu_floor))
