"""Every rule of tests/rule_table.py: derivatives of both orders, float32 at extremes, compile and export.

Moments against sampling are in the file of each family, which knows what a rule promises.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rule_checks import assert_float32_keeps_the_digits_of_float64, assert_gradients_are_finite, extremes, gaussian
from rule_table import POSITIVE, RULES, SHAPE, positive
from torch import Tensor, nn
from torch_versions import IS_OLD, newer_torch

import mnvi

ALL = {**RULES, **{name: lambda x, rule=rule: rule(positive(x)) for name, rule in POSITIVE.items()}}
# torch traces no sparse product, and torch 2.11 neither einops nor an RMS norm without a weight.
UNTRACED = {"sparse product"} | ({"rms norm", "einops"} if IS_OLD else set())
# Where a result may vary far less than what it is made of, that is the scale of its errors.
SCALES: dict[str, Any] = {
    "cosine similarity": lambda x: torch.full((2, 4), 0.1).double(),
    "Fourier transform": lambda x: x.var.mean(-1, keepdim=True),
    "Fourier transform, real part": lambda x: x.var.sum(-1, keepdim=True),
    "function of itself": lambda x: x.var + x.mean.square(),
}


def _twice_differentiable(name: str) -> Any:
    marks = newer_torch("torch 2.11 has no second derivative of it") if name == "grid_sample" else ()
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(map(_twice_differentiable, ALL)))
def test_derivatives_of_both_orders_match_finite_differences(name: str) -> None:
    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        out = ALL[name](mnvi.Gaussian.trusted(mean, var))
        return out.mean, out.var

    x = gaussian(*SHAPE)
    leaves = x.mean.clone().requires_grad_(), x.var.clone().requires_grad_()
    assert torch.autograd.gradcheck(moments, leaves, fast_mode=True, atol=1e-5, rtol=1e-3)
    assert torch.autograd.gradgradcheck(moments, leaves, fast_mode=True, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", RULES)
def test_float32_keeps_the_digits_of_float64_and_finite_gradients_at_extremes(name: str) -> None:
    """|μ|/σ up to 50, variances from 1e-12 to 1e6; each third case, since other files have all."""
    for x in list(extremes(*SHAPE))[::3]:
        assert_float32_keeps_the_digits_of_float64(RULES[name], x, 1e-4, SCALES.get(name))
        assert_gradients_are_finite(RULES[name], x)


class Everything(nn.Module):
    """All rules at once, so that one graph holds them."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, mean: Tensor, var: Tensor) -> list[tuple[Tensor, Tensor]]:
        x = mnvi.Gaussian.trusted(mean, var)
        results = [ALL[name](x) for name in self.names]
        return [(out.mean, out.var) for out in results]


@pytest.mark.parametrize("way", ["compile", "export"])
def test_graphs_give_the_results_of_eager_mode(way: str) -> None:
    x, net = gaussian(*SHAPE), Everything([name for name in ALL if name not in UNTRACED])
    if way == "compile":
        made = torch.compile(net, fullgraph=True, backend="aot_eager")
    else:
        made = torch.export.export(net, (x.mean, x.var)).module()
    for found, expected, name in zip(made(x.mean, x.var), net(x.mean, x.var), net.names, strict=True):
        torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}")
