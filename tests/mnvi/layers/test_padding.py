"""Padding by copies: exact if no window holds an entry twice, otherwise off by the documented error."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi

SIZE = 6


def exact_variance(layer: nn.Module, *shape: int) -> Tensor:
    """Variance of the layer's output for an input of unit variances, from its full matrix."""
    columns = layer(torch.eye(torch.Size(shape).numel()).view(-1, *shape)) - layer(torch.zeros(1, *shape))
    return columns.square().sum(0).detach()


def given_variance(layer: nn.Module, *shape: int) -> Tensor:
    """The library's variance, with almost deterministic weights."""
    known = mnvi.convert(layer, mnvi.MultiplicativeNoise(1.0, init_rho=-30.0))
    return known(mnvi.Gaussian(torch.zeros(1, *shape), torch.ones(1, *shape))).var[0].detach()


def border_errors(mode: str) -> tuple[Tensor, Tensor]:
    """Relative errors of standard deviations, at the border and inside, for 3×3 kernels as torch initialises them."""
    outside = torch.ones(SIZE, SIZE, dtype=torch.bool)
    outside[1:-1, 1:-1] = False
    at_border, inside = [], []
    for seed in range(5):
        torch.manual_seed(seed)
        layer = nn.Conv2d(8, 16, 3, padding=1, padding_mode=mode)
        ratio = given_variance(layer, 8, SIZE, SIZE) / exact_variance(layer, 8, SIZE, SIZE)
        at_border.append(ratio[:, outside].sqrt() - 1)
        inside.append(ratio[:, ~outside].sqrt() - 1)
    return torch.cat(at_border), torch.cat(inside)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_copies_at_the_border_are_as_far_off_as_documented(mode: str) -> None:
    at_border, inside = border_errors(mode)
    assert at_border.square().mean().sqrt().item() == pytest.approx(0.08, abs=0.005)
    assert at_border.mean().item() == pytest.approx(0.01, abs=0.005)
    assert inside.abs().max() < 1e-5


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_zeros_and_circular_padding_are_exact(mode: str) -> None:
    assert max(errors.abs().max().item() for errors in border_errors(mode)) < 1e-5


@pytest.mark.parametrize(("mode", "first"), [("replicate", 11.0), ("reflect", 9.0)])
def test_the_worst_case_is_the_documented_one(mode: str, first: float) -> None:
    layer = nn.Conv1d(1, 1, 5, padding=2, padding_mode=mode, bias=False)
    nn.init.ones_(layer.weight)
    assert exact_variance(layer, 1, 8)[0, 0].item() == first
    assert given_variance(layer, 1, 8)[0, 0].item() == pytest.approx(5.0)


def test_a_sum_over_an_entry_and_its_copy_is_too_certain_as_documented() -> None:
    x = mnvi.Gaussian(torch.ones(1, 1), torch.full((1, 1), 0.5))
    total = F.pad(x[None], (1, 0), mode="replicate").sum()
    drawn = F.pad(x.sample(10_000, torch.Generator().manual_seed(0)), (1, 0), mode="replicate").sum((1, 2))
    assert total.var.item() == 2 * 0.5
    assert drawn.var().item() == pytest.approx(4 * 0.5, rel=0.07)  # 5 standard errors
