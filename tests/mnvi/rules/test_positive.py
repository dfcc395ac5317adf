"""Logarithms, roots and real powers: moments of the matched log-normal, and what happens near zero."""

import math

import pytest
import torch
from rule_checks import assert_gradients_are_right, assert_zero_variance_is_deterministic
from torch import Tensor

import mnvi
from mnvi.moments import positive

SAMPLES = 200_000
STANDARD_ERRORS = 5
EXPONENTS = torch.tensor([0.3, -1.2, 0.9, 0.5], dtype=torch.float64)
FUNCTIONS = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "power 0.3": lambda x: x**0.3,
    "power -1.5": lambda x: torch.pow(x, -1.5),
    "powers in a tensor": lambda x: torch.pow(x, EXPONENTS.to(x.dtype)),
}
EVERYWHERE = {**FUNCTIONS, "log1p": torch.log1p}


def positive_gaussian(dtype: torch.dtype = torch.float64) -> mnvi.Gaussian:
    mean = torch.tensor([[0.2, 1.0, 3.0, 50.0], [0.5, 2.0, 0.01, 7.0]], dtype=dtype)
    share = torch.tensor([[0.01, 0.3, 0.1, 0.2], [0.001, 0.05, 0.4, 0.0]], dtype=dtype)  # v/μ²
    return mnvi.Gaussian(mean, share * mean.square())


def log_normal_samples(x: mnvi.Gaussian) -> Tensor:
    spread = torch.log1p(x.var / x.mean.square())
    noise = torch.randn(SAMPLES, *x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    return torch.exp(x.mean.log() - spread / 2 + spread.sqrt() * noise)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_moments_are_those_of_the_matched_log_normal(name):
    x, function = positive_gaussian(), EVERYWHERE[name]
    out = function(x)
    if name == "log1p":  # the variable that is matched is 1 + x
        values = function(log_normal_samples(mnvi.Gaussian(1 + x.mean, x.var)) - 1)
    else:
        values = function(log_normal_samples(x))
    mean, var = values.mean(0), values.var(0)
    fourth = (values - mean).pow(4).mean(0)
    assert ((out.mean - mean).abs() <= STANDARD_ERRORS * (var / SAMPLES).sqrt() + 1e-12).all()
    assert ((out.var - var).abs() <= STANDARD_ERRORS * ((fourth - var.square()) / SAMPLES).sqrt() + 1e-12).all()


@pytest.mark.parametrize(("name", "error"), [("log", 0.02), ("sqrt", 0.01), ("rsqrt", 0.03)])
def test_a_gaussian_far_from_zero_has_almost_these_moments(name, error):
    x = mnvi.Gaussian(torch.tensor([1.0, 5.0]).double(), torch.tensor([0.01, 0.25]).double())  # σ = μ/10
    values = FUNCTIONS[name](x.sample(SAMPLES, torch.Generator().manual_seed(1)))
    out = FUNCTIONS[name](x)
    assert ((out.std / values.std(0) - 1).abs() <= error).all()
    assert ((out.mean - values.mean(0)).abs() <= 0.01 * values.std(0)).all()


@pytest.mark.parametrize("name", EVERYWHERE)
def test_zero_variance_gives_the_function_itself(name):
    assert_zero_variance_is_deterministic(EVERYWHERE[name], positive_gaussian())


@pytest.mark.parametrize("name", EVERYWHERE)
def test_gradients_match_finite_differences(name):
    x = positive_gaussian()
    x.var.clamp_(min=1e-3)
    assert_gradients_are_right(EVERYWHERE[name], x)


@pytest.mark.parametrize("exponent", [2.5, torch.tensor([1.5, 3.0], dtype=torch.float64), torch.tensor(3.0).double()])
def test_powers_above_one_are_those_of_a_gaussian_that_is_cut_off_at_zero(exponent):
    x = mnvi.Gaussian(torch.tensor([0.4, 2.0]).double(), torch.tensor([0.3, 0.3]).double())
    values = x.sample(SAMPLES, torch.Generator().manual_seed(1)).clamp(min=0).pow(exponent)
    out = torch.pow(x, exponent)
    error = STANDARD_ERRORS / SAMPLES**0.5 + 2e-3  # of quadrature at the bend
    assert ((out.mean - values.mean(0)).abs() <= error * values.std(0)).all()
    assert ((out.std / values.std(0) - 1).abs() <= 3 * error).all()


def test_generalised_mean_pooling_of_a_rectified_image():
    """GeM: clamp, a learnt power, average, root. The clamped values are no Gaussians, hence the error."""
    x = mnvi.Gaussian(torch.randn(4, 36).double(), torch.full((4, 36), 0.05).double())

    def pooled(x):
        exponent = torch.tensor([3.0], dtype=x.dtype)
        return torch.mean(torch.clamp(x, min=1e-6) ** exponent, -1) ** (1 / exponent)

    values, out = pooled(x.sample(20_000, torch.Generator().manual_seed(1))), pooled(x)
    assert ((out.std / values.std(0) - 1).abs() <= 0.05).all()
    assert ((out.mean - values.mean(0)).abs() <= 0.2 * values.std(0)).all()


def test_an_exponent_that_is_learnt_has_a_gradient():
    x, exponent = positive_gaussian(), torch.tensor([3.1], dtype=torch.float64, requires_grad=True)

    def pooled(p: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.mean(torch.clamp(x, min=1e-6) ** p, 1) ** (1 / p)
        return out.mean, out.var

    assert torch.autograd.gradcheck(pooled, (exponent,))


@pytest.mark.parametrize("name", EVERYWHERE)
def test_float32_agrees_with_float64_and_stays_finite_over_extreme_inputs(name):
    sizes = torch.tensor([1e-6, 1e-3, 1.0, 1e3, 1e5])
    ratios = torch.tensor([0.0, 1e-12, 1e-6, 1e-2, 1.0, 10.0])  # v/μ²
    mean, ratio = torch.meshgrid(sizes, ratios, indexing="ij")
    mean = mean.reshape(-1, 1).expand(-1, 4).contiguous()
    x = mnvi.Gaussian(mean, ratio.reshape(-1, 1) * mean.square())
    out, exact = EVERYWHERE[name](x), EVERYWHERE[name](mnvi.Gaussian(x.mean.double(), x.var.double()))
    assert out.mean.isfinite().all() and out.var.isfinite().all() and (out.var >= 0).all()
    torch.testing.assert_close(out.mean.double(), exact.mean, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(out.var.double(), exact.var, rtol=2e-5, atol=1e-37)


def test_a_tiny_mean_beside_a_large_variance_stays_finite():
    x = mnvi.Gaussian(torch.tensor([1e-30, 1e-10]), torch.tensor([1e6, 1.0]))
    for out in (torch.sqrt(x), torch.log(x)):
        assert out.mean.isfinite().all() and out.var.isfinite().all()


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_mean_below_the_line_is_an_error_that_says_what_to_do(name):
    x = mnvi.Gaussian(torch.full((4,), -2.5), torch.full((4,), 0.5))
    with pytest.raises(ValueError, match=r"mean -2\.5 and variance 0\.5 has no moments.*torch\.clamp\(x, min=1e-6\)"):
        EVERYWHERE[name](x)


def test_zero_without_variance_is_allowed_as_in_torch():
    zero = mnvi.Gaussian(torch.zeros(2), torch.zeros(2))
    assert (torch.sqrt(zero).mean == 0).all() and (torch.sqrt(zero).var == 0).all()
    assert torch.log(zero).mean.isneginf().all()
    with pytest.raises(ValueError, match="sqrt: a Gaussian of mean 0 and variance 1"):
        torch.sqrt(mnvi.Gaussian(torch.zeros(1), torch.ones(1)))


def test_in_place_forms_change_the_object():
    x = positive_gaussian()
    expected = torch.sqrt(x)
    assert x.sqrt_() is x and torch.equal(x.var, expected.var)


def test_taylor_option_gives_the_first_order_rule():
    x = positive_gaussian()
    with mnvi.options(activation="taylor"):
        out = torch.rsqrt(x)
    torch.testing.assert_close(out.mean, x.mean.rsqrt())
    torch.testing.assert_close(out.var, x.var / (4 * x.mean.pow(3)))


def test_root_of_the_square_keeps_the_second_moment():
    x = mnvi.Gaussian(torch.randn(50).double(), torch.rand(50).double() + 0.1)
    out = torch.sqrt(torch.square(x))
    torch.testing.assert_close(out.mean.square() + out.var, x.mean.square() + x.var)


def test_compile_without_graph_breaks():
    def several(x):
        return torch.log1p(x) + torch.sqrt(x) * 2 + x.pow(-0.5)

    x = positive_gaussian(torch.float32)
    expected, out = several(x), torch.compile(several, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.var, expected.var)


@pytest.mark.parametrize(
    "function",
    [lambda x: x * torch.log(x), lambda x: x + torch.sqrt(x), lambda x: x * x.pow(-1.5), lambda x: x - torch.log1p(x)],
)
def test_a_root_or_logarithm_combined_with_its_own_argument_is_of_first_order(function):
    x = mnvi.Gaussian(torch.tensor([0.8, 3.0, 20.0]).double(), torch.tensor([0.0064, 0.09, 4.0]).double())  # σ = μ/10
    values, out = function(x.sample(SAMPLES, torch.Generator().manual_seed(1))), function(x)
    assert ((out.std / values.std(0) - 1).abs() <= 0.04).all()
    assert ((out.mean - values.mean(0)).abs() <= 0.12 * values.std(0)).all()
    wide = function(mnvi.Gaussian(torch.tensor([0.1]), torch.tensor([1.0])))  # half of it below zero
    assert wide.mean.isfinite().all() and wide.var.isfinite().all()


@pytest.mark.parametrize("exponent", [math.inf, math.nan])
def test_an_exponent_that_is_no_finite_number_is_refused(exponent):
    with pytest.raises(ValueError, match=r"pow: exponent=.* must be a finite number"):
        torch.pow(positive_gaussian(), exponent)


def test_half_precision_means_are_rounded_once():
    mean, var = torch.tensor([2.0, 3.0]).bfloat16(), torch.tensor([0.1, 0.2])
    out, exact = (torch.log(mnvi.Gaussian(m, var)) for m in (mean, mean.float()))
    assert out.mean.dtype == torch.bfloat16 and torch.equal(out.var, exact.var)
    assert torch.equal(out.mean, exact.mean.bfloat16())


def test_the_second_moment_of_a_root_is_the_mean_for_every_variance():
    mean, var = torch.rand(100).double() + 0.01, 10 * torch.rand(100).double()
    root, spread = positive.sqrt(mean, var)
    torch.testing.assert_close(root.square() + spread, mean)
