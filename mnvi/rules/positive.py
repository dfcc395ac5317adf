"""Logarithms and roots, which read a Gaussian as a positive variable; ``pow`` is among the activations.

``mnvi.options(activation="taylor")`` replaces them by the first-order rule, as all elementwise functions.
"""

from __future__ import annotations

from functools import partial

import torch

from mnvi.moments import positive
from mnvi.rules.activations import Function, Moments, without_arguments
from mnvi.rules.table import RULES, every

_FUNCTIONS: dict[str, tuple[Function, Moments]] = {
    "sqrt": (torch.sqrt, positive.sqrt),
    "rsqrt": (torch.rsqrt, positive.rsqrt),
    "log": (torch.log, positive.log),
    "log2": (torch.log2, partial(positive.log, base=2.0)),
    "log10": (torch.log10, partial(positive.log, base=10.0)),
    "log1p": (torch.log1p, partial(positive.log, origin=-1.0)),
}

for _name, _pair in _FUNCTIONS.items():
    RULES.rule(*every(_name))(without_arguments(*_pair))
