"""Expected values for likelihoods against dense quadrature in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conformance import dense_moments
from torch import Tensor

from mnvi.moments.expectations import binary_entropy, coin_entropy, log1p_square, recomputed


def tensors(*numbers: float) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(number, dtype=torch.float64) for number in numbers)


@pytest.mark.parametrize("std", [0.01, 0.3, 0.999, 1.0, 3.0, 50.0])
def test_expected_entropy_of_a_coin(std: float) -> None:
    for mean in (-30.0, -4.0, 0.0, 1.5):
        exact, _ = dense_moments(coin_entropy, mean, std**2, (0.0,))
        assert float(binary_entropy(*tensors(mean, std**2))) == pytest.approx(exact, abs=1e-6)
        rough = binary_entropy(torch.tensor(mean), torch.tensor(std**2))
        assert float(rough) == pytest.approx(exact, abs=2e-6)


def test_entropy_of_a_certain_coin_keeps_its_digits() -> None:
    logits = torch.tensor([-60.0, 60.0])
    expected = torch.tensor([61 * math.exp(-60)] * 2)
    torch.testing.assert_close(coin_entropy(logits), expected)
    torch.testing.assert_close(binary_entropy(logits, torch.zeros(2)), expected)


def exact_logarithm(square: float, var: float) -> float:
    """On a grid that is dense where the logarithm has its cusp."""
    mean, sigma = math.sqrt(square), math.sqrt(var)
    wide = mean + sigma * np.linspace(-12, 12, 40_001)
    near = np.sinh(np.linspace(-20, 20, 40_001)) * 1e-3
    z = np.unique(np.concatenate([wide, near[(near > wide[0]) & (near < wide[-1])]]))
    density = np.exp(-0.5 * np.square((z - mean) / sigma)) / (sigma * math.sqrt(2 * math.pi))
    return float(np.trapezoid(np.log1p(np.square(z)) * density, z))


@pytest.mark.parametrize(("whole", "error"), [(0.01, 1e-6), (1.0, 1e-6), (100.0, 1e-6), (1e6, 5e-4), (1e9, 5e-4)])
def test_expected_logarithm_of_one_plus_a_square(whole: float, error: float) -> None:
    for share in (0.01, 0.3, 0.9, 1.0):
        square, var = (1 - share) * whole, share * whole
        assert float(log1p_square(*tensors(square, var))) == pytest.approx(exact_logarithm(square, var), abs=error)


def test_without_variance_the_logarithm_is_exact() -> None:
    square = torch.logspace(-20, 30, 51)
    assert torch.equal(log1p_square(square, torch.zeros_like(square)), torch.log1p(square))


@pytest.mark.parametrize("function", [binary_entropy, log1p_square])
def test_gradients_match_finite_differences(function: object) -> None:
    first = torch.tensor([0.2, 1.5, 7.0], dtype=torch.float64).requires_grad_()
    second = torch.tensor([0.1, 0.7, 4.0], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(function, (first, second), atol=1e-5)


@pytest.mark.parametrize("function", [binary_entropy, log1p_square])
def test_vmap_agrees(function: object) -> None:
    first, second = torch.rand(5, 2).double(), torch.rand(5, 2).double()
    torch.testing.assert_close(torch.func.vmap(function)(first, second), function(first, second))  # type: ignore[operator]


def test_the_backward_pass_keeps_only_arguments_and_can_be_differentiated_again() -> None:
    kept: list[int] = []
    x = torch.linspace(0.1, 1, 1000).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        value = recomputed(lambda t: t.exp().sin().exp().sin(), x)
    assert sum(kept) <= 1000
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    assert bend.abs().max() > 0
