"""Exponents that stay finite: nothing changes inside, and the way back never ends."""

import pytest
import torch

from mnvi.moments.bounds import bounded, limit

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@every_dtype
def test_inside_the_limit_no_bit_of_value_and_gradient_changes(dtype: torch.dtype) -> None:
    x = torch.linspace(-limit(dtype), limit(dtype), 10_001, dtype=dtype).requires_grad_()
    value = bounded(x)
    assert torch.equal(value, x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(slope[1:-1], torch.ones_like(slope)[1:-1])


@every_dtype
def test_beyond_the_limit_the_exponential_is_its_tangent(dtype: torch.dtype) -> None:
    a = limit(dtype)
    excess = torch.tensor([0.5, 3.0, 100.0, 1e6], dtype=dtype)
    tangent = torch.exp(torch.tensor(a, dtype=dtype)) * (1 + excess)
    torch.testing.assert_close(bounded(a + excess).exp(), tangent, rtol=1e-4, atol=0)
    assert torch.equal(bounded(-a - excess), -bounded(a + excess))


@every_dtype
def test_value_and_slope_do_not_jump_at_the_limit(dtype: torch.dtype) -> None:
    step = 1e-3
    x = (limit(dtype) + torch.tensor([-step, step], dtype=dtype)).requires_grad_()
    value = bounded(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert float((value[1] - value[0]).detach()) == pytest.approx(2 * step, rel=0.01)
    assert float(slope[1]) == pytest.approx(1.0, abs=2 * step)


def test_slopes_are_finite_and_never_zero() -> None:
    x = torch.tensor([-1e30, -1e4, -23.0, 0.0, 23.0, 1e4, 1e30]).requires_grad_()
    (slope,) = torch.autograd.grad(bounded(x).sum(), x)
    assert (slope > 0).all() and (slope <= 1).all()


def test_exponentials_of_any_number_are_finite_and_positive() -> None:
    values = bounded(torch.tensor([-1e28, -1e3, 1e3, 1e28])).exp()
    assert values.isfinite().all() and (values > 0).all()


def test_a_wider_computation_may_keep_the_limit_of_the_narrower_type() -> None:
    x = torch.tensor([10.0, 100.0])
    torch.testing.assert_close(bounded(x.double(), torch.float32).float(), bounded(x))


def test_gradients_match_finite_differences() -> None:
    x = torch.tensor([-500.0, -178.0, -3.0, 0.0, 50.0, 300.0], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(bounded, x) and torch.autograd.gradgradcheck(bounded, x)
