"""Some positions that stand for all: which ones, and how gradients reach them."""

from __future__ import annotations

import torch
from torch import Tensor

import mnvi
from mnvi.moments import position_rows
from mnvi.moments.activations.relu import relu
from mnvi.values.gaussian import Gaussian

SHARED = torch.full((2, 3, 1, 1), 0.1, dtype=torch.float64)


def moments() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 3, 9, 9, generator=generator).double()
    return [mean.requires_grad_(), torch.rand(mean.shape, generator=generator).double().requires_grad_()]


def total(mean: Tensor, var: Tensor, few: tuple[Tensor, Tensor]) -> Tensor:
    """A function of a ReLU's results and of some entries of its input."""
    expectation, variance = relu(mean, var)
    return expectation.square().sum() + variance.sum() + (few[0].exp() * few[1]).sum()


def test_rows_have_the_positions_in_order() -> None:
    values = torch.arange(24.0).view(2, 3, 2, 2)
    assert torch.equal(position_rows.rows(values, (2, 3)), values.flatten(2).mT)
    assert torch.equal(position_rows.rows(values[0], (1, 2)), values[:1].flatten(2).mT)
    tokens = torch.arange(24.0).view(2, 4, 3)
    assert torch.equal(position_rows.rows(tokens, (1,)), tokens)


def test_gradients_of_some_positions_are_added_to_those_of_all() -> None:
    mean, var = moments()
    expected = torch.autograd.grad(
        total(mean, var, tuple(position_rows.some_positions(t, SHARED) for t in (mean, var))), (mean, var)
    )
    found = torch.autograd.grad(total(*position_rows.beside(mean, var, SHARED)), (mean, var))
    torch.testing.assert_close(found, expected)


def test_second_derivatives_pass_some_positions() -> None:
    mean, var = moments()
    small = [mean.detach()[:1, :1, :3, :3].requires_grad_(), var.detach()[:1, :1, :3, :3].requires_grad_()]
    shared = SHARED[:1, :1]
    assert torch.autograd.gradgradcheck(lambda m, v: total(*position_rows.beside(m, v, shared)), small)


def test_a_relu_hands_on_its_means_at_some_positions() -> None:
    mean, var = moments()
    with torch.no_grad(), mnvi.options(spatial="shared_weights", relu_floor=0.2):
        out = torch.relu(Gaussian.trusted(mean.detach(), var.detach(), SHARED))
    expected = position_rows.rows(position_rows.some_positions(out.mean, SHARED), (2, 3))
    torch.testing.assert_close(out.picked.rows, expected)


def test_the_floor_of_a_relu_is_that_of_its_covariance() -> None:
    """Variances below the floor count as the floor, as they do for the ReLU's own moments."""
    mean, var = (t.detach() for t in moments())
    raised = Gaussian.trusted(mean, var.clamp(min=0.5), SHARED)
    with mnvi.options(spatial="shared_weights"):
        expected = torch.relu(raised)
        with mnvi.options(relu_floor=0.5):
            found = torch.relu(Gaussian.trusted(mean, var, SHARED))
    torch.testing.assert_close(found.shared, expected.shared)
    torch.testing.assert_close(found.var, expected.var)
