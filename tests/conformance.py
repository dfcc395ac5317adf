"""What every elementwise rule must do; the test classes of test_activations.py inherit it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import mnvi

SAMPLES = 200_000
STANDARD_ERRORS = 5.0
UNSEEN = 20 / SAMPLES  # the probability of an event that may be missing among the samples
REACH = 10.0  # standard deviations that the reference integrates over

MEANS = (-6.0, -2.9, -1.0, -0.3, 0.0, 0.5, 1.2, 3.1, 7.0)
VARIANCES = (1e-4, 0.3, 0.97, 1.1, 4.0, 100.0)
EXTREME_VARIANCES = tuple(10.0**k for k in range(-12, 7))
EXTREME_RATIOS = (0.0, 0.01, 0.3, 1.0, 2.0, 3.3, 5.0, 8.0, 20.0, 50.0)


class ElementwiseConformance:
    """Set the function and the promised accuracy of its moments.

    Errors are relative to the natural scale of the result: ``min(steepest·σ, span) + jump`` for means, its square for
    variances; where the slope has no bound, override ``scale``. The tolerance adds the rounding of the reference.
    """

    function: Callable  # on a tensor and on a Gaussian alike
    in_place: Callable | None = None  # the same, changing its argument
    kinks: tuple[float, ...] = (0.0,)  # where the reference has to split its integral
    steepest: float = 1.0
    span: float = math.inf
    jump: float = 0.0
    mean_error: float = 1e-9  # of the approximation, in float64
    var_error: float = 1e-9
    float32_error: float = 1e-6  # of the arithmetic
    table_error: float = 0.0  # of the table that answers in float32; twice as much in the variance
    largest_mean: float = math.inf  # beyond, the function itself overflows
    largest_var: float = math.inf

    def test_moments_match_samples(self) -> None:
        mean, var = self.grid(MEANS, VARIANCES)
        result = self.apply(mean, var)
        noise = torch.randn(SAMPLES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for i in range(len(mean)):
            values = type(self).function(mean[i] + var[i].sqrt() * noise)
            sampled_var, sampled_mean = torch.var_mean(values)
            fourth = (values - sampled_mean).pow(4).mean()
            mean_tolerance = STANDARD_ERRORS * (sampled_var / SAMPLES).sqrt()
            var_tolerance = STANDARD_ERRORS * ((fourth - sampled_var.square()).clamp(min=0) / SAMPLES).sqrt()
            scale = self.scale(mean[i], var[i])
            where = f"at mean {mean[i]:g}, variance {var[i]:g}"
            assert (result.mean[i] - sampled_mean).abs() <= mean_tolerance + (self.mean_error + UNSEEN) * scale, where
            var_tolerance = var_tolerance + (self.var_error + UNSEEN) * scale.square()
            assert (result.var[i] - sampled_var).abs() <= var_tolerance, where

    def test_moments_match_dense_quadrature_within_the_documented_error(self) -> None:
        mean, var = self.grid(MEANS, VARIANCES)
        self.assert_close_to_reference(self.apply(mean, var), mean, var, self.mean_error, self.var_error)

    def test_float32_matches_float64_over_extreme_inputs(self) -> None:
        mean, var = self.extremes()
        mean, var = mean.float(), var.float()
        rough = self.apply(mean, var)
        exact = self.apply(mean.double(), var.double())
        scale = self.scale(mean.double(), var.double())
        assert rough.mean.dtype == rough.var.dtype == torch.float32
        rounding = self.float32_error * (scale + exact.mean.abs()) + self.table_error * scale
        assert_within(rough.mean, exact.mean, rounding, mean, var)
        # a table and its switch are read at the same place in both precisions, up to the documented error
        seam = (self.var_error + 2 * self.table_error) * scale.square()
        assert_within(rough.var, exact.var, self.float32_error * scale.square() + seam, mean, var)

    def test_extreme_inputs_match_dense_quadrature(self) -> None:
        mean, var = self.extremes()
        self.assert_close_to_reference(self.apply(mean, var), mean, var, self.mean_error, self.var_error)

    def test_variance_is_never_negative_and_nothing_is_nan(self) -> None:
        variances = [v for v in (0.0, 1e-44, 1e-38, 1e-30, 1e-12, 1.0, 1e4, 1e10) if v <= self.largest_var]
        means = [m for size in (0.0, 1e-30, 1e-3, 0.5, 1.0, 3.0, 6.0, 80.0, 1e4) for m in (size, -size)]
        mean, var = self.grid([m for m in means if m <= self.largest_mean], variances)
        result = self.apply(mean.float(), var.float())
        assert result.mean.isfinite().all() and result.var.isfinite().all()
        assert (result.var >= 0).all()

    def test_zero_variance_gives_the_function_itself(self) -> None:
        mean = torch.linspace(-8, 8, 65)
        result = self.apply(mean, torch.zeros_like(mean))
        torch.testing.assert_close(result.mean, type(self).function(mean), rtol=1e-5, atol=1e-6)
        assert (result.var == 0).all()

    def test_gradients_match_finite_differences(self) -> None:
        mean, var = self.grid((-3.7, -0.4, 1.1), (0.02, 0.4, 4.0))
        inputs = mean.requires_grad_(), var.requires_grad_()
        assert torch.autograd.gradcheck(self.moments, inputs, atol=1e-5, rtol=1e-4)

    @pytest.mark.filterwarnings("ignore:Anomaly")
    def test_gradients_are_finite_without_noise(self) -> None:
        mean = torch.linspace(-6, 6, 25).requires_grad_()
        var = torch.zeros(25).requires_grad_()
        gradients = torch.autograd.grad(sum(part.sum() for part in self.moments(mean, var)), (mean, var))
        assert all(gradient.isfinite().all() for gradient in gradients)

    def test_vmap_agrees(self) -> None:
        mean, var = self.grid(MEANS, VARIANCES)
        mapped = torch.func.vmap(self.moments)(mean[:, None], var[:, None])
        for part, expected in zip(mapped, self.moments(mean, var), strict=True):
            torch.testing.assert_close(part.flatten(), expected)

    def test_half_precision_mean_keeps_its_dtype_beside_a_float32_variance(self) -> None:
        mean, var = self.grid(MEANS, VARIANCES[:4])
        half, var = mean.bfloat16(), var.float()
        result, exact = self.apply(half, var), self.apply(half.float(), var)
        assert (result.mean.dtype, result.var.dtype) == (torch.bfloat16, torch.float32)
        torch.testing.assert_close(result.mean, exact.mean.bfloat16(), rtol=0, atol=0)
        torch.testing.assert_close(result.var, exact.var)

    def test_in_place_form_changes_the_object(self) -> None:
        if self.in_place is None:
            pytest.skip("torch has no in-place form of this function")
        mean, var = self.grid(MEANS, VARIANCES)
        x = mnvi.Gaussian(mean.clone(), var.clone())
        returned = type(self).in_place(x)
        expected = self.apply(mean, var)
        assert returned is x
        torch.testing.assert_close(x.mean, expected.mean)
        torch.testing.assert_close(x.var, expected.var)

    def test_taylor_option_gives_the_first_order_rule(self) -> None:
        mean, var = self.grid((-2.3, -0.8, 0.3, 1.7), (0.01, 1.0))
        with mnvi.options(activation="taylor"):
            result = self.apply(mean, var)
        point = mean.clone().requires_grad_()
        value = type(self).function(point)
        (slope,) = torch.autograd.grad(value.sum(), point)
        torch.testing.assert_close(result.mean, value.detach())
        torch.testing.assert_close(result.var, slope.square() * var)

    def apply(self, mean: Tensor, var: Tensor) -> mnvi.Gaussian:
        return type(self).function(mnvi.Gaussian(mean, var))

    def moments(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        result = type(self).function(mnvi.Gaussian.trusted(mean, var))
        return result.mean, result.var

    def scale(self, mean: Tensor, var: Tensor) -> Tensor:
        return (self.steepest * var.sqrt()).clamp(max=self.span) + self.jump

    def grid(self, means: tuple | list, variances: tuple | list) -> tuple[Tensor, Tensor]:
        pairs = [(m, v) for m in means for v in variances if m <= self.largest_mean and v <= self.largest_var]
        mean, var = torch.tensor(pairs, dtype=torch.float64).unbind(1)
        return mean.clone(), var.clone()

    def extremes(self) -> tuple[Tensor, Tensor]:
        """|μ|/σ up to 50, variances from 1e-12 to 1e6, rounded to float32."""
        pairs = [
            (sign * ratio * math.sqrt(v), v) for v in EXTREME_VARIANCES for ratio in EXTREME_RATIOS for sign in (1, -1)
        ]
        pairs = [(m, v) for m, v in pairs if m <= self.largest_mean and v <= self.largest_var]
        mean, var = torch.tensor(pairs, dtype=torch.float32).double().unbind(1)
        return mean.clone(), var.clone()

    def assert_close_to_reference(
        self, result: mnvi.Gaussian, mean: Tensor, var: Tensor, mean_error: float, var_error: float
    ) -> None:
        function = type(self).function
        pairs = [dense_moments(function, m, v, self.kinks) for m, v in zip(mean.tolist(), var.tolist(), strict=True)]
        exact_mean, exact_var = torch.tensor(pairs, dtype=torch.float64).unbind(1)
        scale = self.scale(mean, var)
        size = exact_mean.abs() + mean.abs() * self.steepest  # of the numbers that the reference subtracts
        assert_within(result.mean, exact_mean, mean_error * scale + 1e-13 * size, mean, var)
        noise = 1e-13 * size * scale + 1e-13 * scale.square()
        assert_within(result.var, exact_var, var_error * scale.square() + noise, mean, var)


def assert_within(actual: Tensor, expected: Tensor, tolerance: Tensor, mean: Tensor, var: Tensor) -> None:
    error = (actual.double() - expected).abs()
    worst = int((error / tolerance).nan_to_num(math.inf).argmax())
    assert bool((error <= tolerance).all()), (
        f"at mean {mean[worst]:g}, variance {var[worst]:g}: {actual[worst]:.9g} instead of {expected[worst]:.9g}, "
        f"off by {error[worst]:.3g}, allowed {tolerance[worst]:.3g}"
    )


def dense_moments(function: Callable, mean: float, var: float, kinks: tuple[float, ...]) -> tuple[float, float]:
    """Both moments around f(μ) by composite Gauss–Legendre quadrature in float64, split where the function bends."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    sigma = math.sqrt(var)
    low, high = mean - REACH * sigma, mean + REACH * sigma
    local = np.concatenate([np.asarray(kinks), np.linspace(-30, 30, 241)])  # resolves bends of width one
    edges = np.unique(np.concatenate([np.linspace(low, high, 81), local[(local > low) & (local < high)]]))
    start, end = edges[:-1, None], edges[1:, None]
    z = 0.5 * (start + end) + 0.5 * (end - start) * nodes
    mass = 0.5 * (end - start) * weights * np.exp(-0.5 * np.square((z - mean) / sigma))
    mass /= mass.sum()
    centre = function(torch.tensor([mean], dtype=torch.float64)).numpy()
    step = function(torch.from_numpy(z)).numpy() - centre
    shift = float((mass * step).sum())
    return float(centre[0]) + shift, float((mass * np.square(step - shift)).sum())


def memory_layouts(mean: Tensor, var: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Images [batch, channels, height, width] in the layouts that kernels tell apart, by name."""
    yield "contiguous", mean, var
    yield "channels last", *(t.contiguous(memory_format=torch.channels_last) for t in (mean, var))
    yield "mixed", mean.contiguous(memory_format=torch.channels_last), var
    yield "transposed", mean.transpose(1, 2), var.transpose(1, 2)
    yield "with gaps", mean[..., ::2], var[..., ::2]
    yield "a part of a larger one", mean[1:], var[1:]
