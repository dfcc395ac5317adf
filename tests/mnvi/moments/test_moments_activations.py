"""The moments of every activation, called as such, against a dense float64 quadrature.

The classes of tests/mnvi/rules/test_activations.py test the same formulas through torch's functions and over extreme
inputs; here a formula that no rule reaches would still be tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conformance import MEANS, dense_moments
from scipy import special
from torch import Tensor

from mnvi.moments.activations import elu, gelu, hardswish, logistic, piecewise, rectifiers, softsign, transcendental
from mnvi.moments.activations.relu import relu

VARIANCES = (1e-4, 0.3, 1.1, 4.0)
LARGEST_VARIANCE = {"exp": 1.0, "expm1": 1.0}  # for which the reference reaches far enough
Case = tuple[Callable, Callable, tuple[float, ...], float]  # moments, function, kinks, error relative to the scale
CASES: dict[str, Case] = {
    "relu": (relu, torch.relu, (0.0,), 1e-9),
    "elu": (elu.elu, F.elu, (0.0,), 3e-6),
    "gelu": (gelu.gelu, F.gelu, (), 2e-9),
    "erf": (gelu.erf, torch.erf, (), 2e-9),
    "normal_cdf": (gelu.normal_cdf, torch.special.ndtr, (), 2e-9),
    "hardswish": (hardswish.hardswish, F.hardswish, (-3.0, 3.0), 5e-6),
    "sigmoid": (logistic.sigmoid, torch.sigmoid, (), 3e-5),
    "tanh": (logistic.tanh, torch.tanh, (), 3e-5),
    "tanhshrink": (logistic.tanhshrink, F.tanhshrink, (), 3e-5),
    "silu": (logistic.silu, F.silu, (), 3e-5),
    "kink": (partial(piecewise.kink, above=1.0, below=-0.2), lambda z: F.leaky_relu(z, -0.2), (0.0,), 1e-9),
    "at_least": (partial(piecewise.at_least, low=-0.7), lambda z: z.clamp(min=-0.7), (-0.7,), 1e-9),
    "ramp": (partial(piecewise.ramp, low=-1.0, high=2.0), lambda z: z.clamp(-1, 2), (-1.0, 2.0), 1e-9),
    "threshold": (
        partial(piecewise.threshold, threshold=0.4, value=-1.0),
        lambda z: F.threshold(z, 0.4, -1.0),
        (0.4,),
        1e-9,
    ),
    "hardshrink": (partial(piecewise.hardshrink, lambd=0.6), lambda z: F.hardshrink(z, 0.6), (-0.6, 0.6), 1e-9),
    "softplus": (rectifiers.softplus, F.softplus, (), 2e-6),
    "mish": (rectifiers.mish, F.mish, (), 2e-5),
    "gelu_tanh": (rectifiers.gelu_tanh, partial(F.gelu, approximate="tanh"), (), 2e-5),
    "softsign": (softsign.softsign, F.softsign, (0.0,), 5e-6),
    "exp": (transcendental.exp, torch.exp, (), 1e-9),
    "expm1": (transcendental.expm1, torch.expm1, (), 1e-9),
    "sin": (transcendental.sin, torch.sin, (), 1e-9),
    "cos": (transcendental.cos, torch.cos, (), 1e-9),
    "power": (partial(transcendental.power, exponent=3), lambda z: z**3, (), 1e-9),
}


@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_a_dense_quadrature(name: str) -> None:
    moments, function, kinks, error = CASES[name]
    pairs = [(m, v) for m in MEANS for v in VARIANCES if v <= LARGEST_VARIANCE.get(name, math.inf)]
    mean, var = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    found = moments(mean, var)
    exact = torch.tensor([dense_moments(function, m, v, kinks) for m, v in pairs], dtype=torch.float64).unbind(1)
    scale = var.sqrt() + exact[1].sqrt() + 1e-3 * exact[0].abs()  # that the documented errors are relative to, at least
    _assert_within(found[0], exact[0], error * scale)
    _assert_within(found[1], exact[1], error * scale.square())


def _assert_within(found: Tensor, exact: Tensor, tolerance: Tensor) -> None:
    worst = ((found - exact).abs() / tolerance).max()
    assert worst <= 1, f"off by {worst:g} times the documented error"


def test_the_random_slope_of_a_kink_adds_its_variance() -> None:
    # Z·(1 or a uniform slope): averaged over slopes by Gauss–Legendre, over Z by the dense quadrature of each
    lowest, highest, mean, var = 0.1, 0.5, 0.3, 1.4
    nodes = 0.5 * (torch.tensor([-1, 0, 1], dtype=torch.float64) * math.sqrt(0.6) + 1)
    weights = torch.tensor([5, 8, 5], dtype=torch.float64) / 18
    slopes = (lowest + (highest - lowest) * nodes).tolist()
    each = [dense_moments(lambda z, s=s: F.leaky_relu(z, s), mean, var, (0.0,)) for s in slopes]
    first, second = (torch.tensor(values, dtype=torch.float64) for values in zip(*each, strict=True))
    expected = (weights * first).sum()
    spread = (weights * (second + (first - expected).square())).sum()
    inputs = torch.tensor([[mean], [var]], dtype=torch.float64)
    found = piecewise.random_kink(*inputs, lowest=lowest, highest=highest)
    torch.testing.assert_close(torch.cat(found), torch.stack([expected, spread]), rtol=1e-10, atol=0)


def test_erfcx_is_scipys() -> None:
    x = torch.logspace(-3, 2, 101, dtype=torch.float64)
    torch.testing.assert_close(elu.erfcx(x), torch.from_numpy(special.erfcx(x.numpy())), rtol=4e-7, atol=0)
