"""The standard Gaussian's density and tail, and square roots that keep gradients finite."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate, stats

from mnvi.moments.normal import (
    FAR,
    SMALLEST_VARIANCE,
    bounded_sqrt,
    choose,
    density,
    distance,
    proportional,
    safe_sqrt,
    tail,
    tail_and_excess,
)

GRID = torch.linspace(0, FAR, 181, dtype=torch.float64)


def test_density_and_tail_are_scipys() -> None:
    torch.testing.assert_close(density(GRID), torch.from_numpy(stats.norm.pdf(GRID)), rtol=1e-12, atol=0)
    torch.testing.assert_close(tail(GRID), torch.from_numpy(stats.norm.sf(GRID)), rtol=1e-12, atol=0)


def test_the_excess_is_the_integral_of_the_tail() -> None:
    q, t = tail_and_excess(GRID[:81])  # beyond four standard deviations φ - a·q cancels, as its absolute error allows
    torch.testing.assert_close(q, torch.from_numpy(stats.norm.sf(GRID[:81])), rtol=1e-12, atol=0)
    for a, excess in list(zip(GRID[:81].tolist(), t.tolist(), strict=True))[::16]:
        assert excess == pytest.approx(integrate.quad(stats.norm.sf, a, math.inf, epsabs=1e-13)[0], abs=1e-12)


def test_a_distance_is_bounded() -> None:
    found = distance(torch.tensor([-2.0, 50.0, 0.0]), torch.tensor([2.0, 1.0, 1.0]))
    assert found.tolist() == [1.0, FAR, 0.0]


def test_square_roots_have_finite_gradients_without_noise() -> None:
    for root in (safe_sqrt, bounded_sqrt):
        var = torch.tensor([0.0, 4.0], requires_grad=True)
        root(var).sum().backward()
        assert var.grad is not None and var.grad.tolist() == [0.0, 0.25], root


def test_a_bounded_root_is_bounded_on_both_sides() -> None:
    found = bounded_sqrt(torch.tensor([0.0, 9.0, 1e6]), largest=10.0)
    assert found.tolist() == [pytest.approx(math.sqrt(SMALLEST_VARIANCE)), 3.0, 10.0]


def test_a_variance_computed_with_a_bounded_root_vanishes_without_noise() -> None:
    var = torch.tensor([0.0, 2.0])
    assert proportional(torch.tensor([5.0, 3.0]), var, bounded_sqrt(var)).tolist() == pytest.approx([0.0, 3.0])


def test_choose_is_where_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    yes, no = torch.randn(2, 1000, generator=generator)
    condition = torch.rand(1000, generator=generator) < 0.5
    assert torch.equal(choose(condition, yes, no), torch.where(condition, yes, no))
