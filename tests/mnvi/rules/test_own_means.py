"""A value and its own sum or mean: sums and differences have the moments of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rule_checks import assert_gradients_are_right, assert_moments_are_those_of_samples, gaussian
from torch import nn

import mnvi

CASES: dict[str, Callable[[Any], Any]] = {
    "centred": lambda x: x - torch.mean(x, -1, keepdim=True),
    "centred, dimension added again": lambda x: x - torch.mean(x, 1)[:, None],
    "centred along the first dimension": lambda x: torch.sub(x, torch.mean(x, 0), alpha=2),
    "reflected": lambda x: torch.rsub(x, torch.mean(x, 1, keepdim=True)),
    "plus the sum of all": lambda x: 2 * x + 0.5 * torch.sum(x),
    "transposed": lambda x: x.T - torch.mean(x, 0, keepdim=True).T,
    "one row": lambda x: x[1] - torch.mean(x, 1)[1],
    "minus the mean of another row": lambda x: x[0] - torch.mean(x, 1)[1],
    "over two dimensions": lambda x: x.view(2, 3, 2) - torch.mean(x.view(2, 3, 2), (0, 2), keepdim=True),
    "of some entries": lambda x: x - torch.mean(x[:, :2], 1, keepdim=True),
    "of other entries": lambda x: x[:, 0] + torch.mean(x[:, 1:], 1),
}


@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_samples(name: str) -> None:
    assert_moments_are_those_of_samples(CASES[name], gaussian(3, 4))


@pytest.mark.parametrize("name", ["centred", "transposed"])
def test_gradients_and_compiled_results(name: str) -> None:
    x = gaussian(3, 4)
    assert_gradients_are_right(CASES[name], x)
    compiled = torch.compile(CASES[name], fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(compiled.var, CASES[name](x).var)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.sigmoid(x) - torch.mean(x, 1, keepdim=True),
        lambda x: x + torch.ones(4) * torch.mean(x, 1, keepdim=True),
    ],
)
def test_what_is_neither_warns(function: Callable[[Any], Any]) -> None:
    with pytest.warns(mnvi.DependenceWarning, match="its operands are functions of the same"):
        function(gaussian(3, 4))


def test_positions_that_share_weights_lose_what_they_have_in_common() -> None:
    """Against weights drawn a hundred thousand times."""
    layer = mnvi.convert(nn.Conv1d(2, 3, 1, bias=False), mnvi.MultiplicativeNoise(1.0, init_rho=-1.0)).double()
    x = torch.randn(1, 2, 5, dtype=torch.float64)
    with mnvi.options(spatial="shared_weights"), torch.no_grad():
        out = layer(x)
        found = out - torch.mean(out, -1, keepdim=True)
    weights = (
        layer.weight.detach()
        + layer.weight_variance().detach().sqrt() * torch.randn(100_000, *layer.weight.shape).double()
    )
    samples = torch.einsum("soik,bip->sbop", weights, x)
    exact = (samples - samples.mean(-1, keepdim=True)).var(0)
    assert float(found.var.sum() / exact.sum()) == pytest.approx(1, abs=0.25)
    assert float(out.var.sum() / exact.sum()) > 1.3


@pytest.mark.parametrize("own, mean", [(1.0, -1.0), (1.0, 1.0), (1.0, -0.1), (-2.0, 0.5)])
def test_what_positions_have_in_common_stays_right(own: float, mean: float) -> None:
    """The mean of a x + b x̄ is (a + b) x̄; v = 1, c = 0.5 and n = 4 are exact."""
    x = mnvi.Gaussian(torch.zeros(1, 2, 4), torch.ones(1, 2, 4))
    x.shared = torch.full((1, 2, 1), 0.5)
    with mnvi.options(spatial="shared_weights"):
        found = torch.mean(own * x + mean * torch.mean(x, -1, keepdim=True), -1).var
    torch.testing.assert_close(found, torch.full((1, 2), (own + mean) ** 2 * (1 + 3 * 0.5) / 4), atol=1e-6, rtol=1e-5)


def test_a_part_of_the_positions_minus_the_mean_of_all() -> None:
    x = mnvi.Gaussian(torch.zeros(1, 2, 4), torch.ones(1, 2, 4))
    x.shared = torch.full((1, 2, 1), 0.5)
    with mnvi.options(spatial="shared_weights"):
        found = x[..., :2] - torch.mean(x, -1, keepdim=True)
    torch.testing.assert_close(found.var, torch.full((1, 2, 2), 0.375))  # 1 + 0.625 - 2 (1 + 3 * 0.5) / 4


def test_an_operand_by_its_name_is_the_same() -> None:
    x = gaussian(3, 4)
    mean = torch.mean(x, -1, keepdim=True)
    torch.testing.assert_close(torch.sub(x, other=mean).var, (x - mean).var)
