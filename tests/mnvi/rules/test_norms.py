"""Norms, distances, variances, standard deviations, cosines, and windows of squares."""

import math

import pytest
import torch
import torch.nn.functional as F
from rule_checks import (
    assert_float32_keeps_the_digits_of_float64,
    assert_gradients_are_finite,
    assert_gradients_are_right,
    assert_half_precision_keeps_the_variance,
    assert_moments_are_those_of_samples,
    extremes,
    gaussian,
    sampled,
)

import mnvi
from mnvi.moments import norms

EXACT = {
    "1-norm": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "norm of single entries": lambda x: torch.norm(x[..., :1], dim=-1),
    "var": lambda x: torch.var(x, 1),
    "var, biased": lambda x: torch.var(x, dim=(0, 2), correction=0, keepdim=True),
    "var of all": torch.var,
    "pooling by the 1-norm": lambda x: F.lp_pool1d(x, 1.0, 2),
}
APPROXIMATE = {  # error of the standard deviation, and of the mean in standard deviations
    "2-norm": (lambda x: x.norm(dim=-1), 0.03),
    "2-norm of all": (torch.norm, 0.01),
    "3-norm": (lambda x: torch.linalg.vector_norm(x, 3, dim=(1, 2)), 0.06),
    "4-norm": (lambda x: torch.linalg.vector_norm(x, 4, dim=(1, 2)), 0.15),
    "Frobenius norm": (lambda x: torch.linalg.matrix_norm(x, keepdim=True), 0.03),
    "std": (lambda x: torch.std(x, -1), 0.03),
    "std of all": (lambda x: torch.std(x, unbiased=False), 0.01),
    "std and mean": (lambda x: torch.std_mean(x, (1, 2))[0], 0.02),
    "pooling by the 2-norm": (lambda x: F.lp_pool2d(x, 2.0, 2), 0.08),
    "local response norm": (lambda x: F.local_response_norm(x, 3, alpha=0.1), 0.03),
    "distances": (lambda x: torch.cdist(x[0], x[1]), 0.03),
    "distances in a set": (lambda x: torch.cdist(x, x), 0.03),
    "distances in pairs": (lambda x: F.pairwise_distance(x[0], x[1]), 0.03),
    "dist": (lambda x: torch.dist(x[0], x[1]), 0.02),
    "cosine": (lambda x: torch.cosine_similarity(x[0], x[1], dim=-1), 0.06),
}
DETERMINISTIC = {**EXACT, **{name: function for name, (function, _) in APPROXIMATE.items()}}
OTHERS = {
    "∞-norm": lambda x: torch.linalg.vector_norm(x, math.inf, dim=(0, 1)),
    "var and mean": lambda x: torch.var_mean(x, -1)[1],
    "pooling by the 4-norm": lambda x: F.lp_pool1d(x, 4.0, 2),
    "2-norm, kept": lambda x: torch.linalg.norm(x, dim=1, keepdim=True),
    "cosine with a tensor": lambda x: F.cosine_similarity(x, torch.ones(8, dtype=x.dtype), dim=-1),
}


def apart() -> mnvi.Gaussian:
    return gaussian(2, 3, 8, scale=0.3)


@pytest.mark.parametrize("name", EXACT)
def test_exact_moments_are_those_of_samples(name):
    assert_moments_are_those_of_samples(EXACT[name], apart())


@pytest.mark.parametrize("name", APPROXIMATE)
def test_moments_are_those_of_samples_within_the_documented_error(name):
    function, error = APPROXIMATE[name]
    out = function(apart())
    mean, mean_error, var, var_error = sampled(function, apart(), num_samples=40_000)
    assert ((out.mean - mean).abs() <= error * var.sqrt() + 5 * mean_error).all()
    assert ((out.var - var).abs() <= 2 * error * var + 5 * var_error).all()


@pytest.mark.parametrize("name", {**DETERMINISTIC, **OTHERS})
def test_zero_variance_gives_the_function_itself(name):
    function = {**DETERMINISTIC, **OTHERS}[name]
    if name != "distances in a set":  # its gradient at zero has no meaning
        assert_gradients_are_right(function, apart())
    known = apart().mean
    out = function(mnvi.Gaussian(known, torch.zeros_like(known)))
    torch.testing.assert_close(out.mean, function(known))
    assert (out.var == 0).all()


def test_the_norm_of_noise_is_the_chi_distribution():
    for n in (2, 3, 10, 200):
        zero, variance = torch.zeros(n, dtype=torch.float64), torch.full((n,), 4.0, dtype=torch.float64)
        out = torch.linalg.vector_norm(mnvi.Gaussian(zero, variance))
        mean = 2 * math.sqrt(2) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))
        assert out.mean.item() == pytest.approx(mean, rel=1e-6)
        assert out.var.item() == pytest.approx(4 * n - mean**2, rel=1e-6)


def test_the_root_keeps_the_second_moment():
    total, ratio = torch.rand(100).double() + 0.1, 2 * torch.rand(100).double()
    mean, var = norms.root(total, ratio)
    torch.testing.assert_close(mean.square() + var, total)


def test_distances_of_a_set_are_known_on_the_diagonal():
    out = torch.cdist(apart(), apart())  # two objects: not the same set
    assert (out.var.diagonal(dim1=-2, dim2=-1) > 0).all()
    x = apart()
    out = torch.cdist(x, x)
    assert (out.mean.diagonal(dim1=-2, dim2=-1) == 0).all() and (out.var.diagonal(dim1=-2, dim2=-1) == 0).all()


def test_the_cosine_of_noise_has_the_variance_of_a_random_direction():
    noise = mnvi.Gaussian(torch.zeros(1, 10), torch.ones(1, 10))
    direction = torch.randn(1, 10)
    torch.testing.assert_close(torch.cosine_similarity(noise, direction).var, torch.tensor([0.1]))


def test_clark_matches_the_largest_absolute_value():
    x = gaussian(3, 2)
    with mnvi.options(max_pool="clark"):
        out = torch.linalg.vector_norm(x, math.inf, dim=-1)
        expected = torch.amax(torch.abs(x), -1)
    torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))


def test_a_vector_of_zeros_has_finite_gradients():
    mean, var = torch.zeros(2, 4, requires_grad=True), torch.zeros(2, 4, requires_grad=True)
    for function in (lambda x: x.norm(dim=-1), lambda x: torch.std(x, -1), lambda x: F.lp_pool1d(x, 2.0, 2)):
        out = function(mnvi.Gaussian(mean, var))
        for gradient in torch.autograd.grad(out.mean.sum() + out.var.sum(), (mean, var)):
            assert gradient.isfinite().all()


EXTREME = {
    "2-norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "var": lambda x: torch.var(x, -1),
    "std": lambda x: torch.std(x, (1, 2)),
    "cosine": lambda x: torch.cosine_similarity(x[0], x[1], dim=-1),
    "local response norm": lambda x: F.local_response_norm(x, 3),
    "pooling by the 2-norm": lambda x: F.lp_pool2d(x, 2.0, 2),
}


@pytest.mark.parametrize("name", EXTREME)
def test_float32_keeps_the_digits_of_float64_over_extreme_inputs(name):
    scale = {"cosine": lambda x: torch.full((4,), 0.1).double()}.get(name)
    for x in extremes(3, 4, 6):
        assert_float32_keeps_the_digits_of_float64(EXTREME[name], x, 3e-5, scale)
        assert_gradients_are_finite(EXTREME[name], x)


def test_half_precision_keeps_the_variance():
    for name in ("2-norm", "std", "cosine", "local response norm"):
        assert_half_precision_keeps_the_variance(EXTREME[name], gaussian(3, 4, 6))


def test_spellings_agree():
    x = apart()
    for spelled in (torch.linalg.vector_norm(x, dim=(0, 1)), x.norm(2, (0, 1)), torch.norm(x, p=2, dim=[0, 1])):
        torch.testing.assert_close(spelled.var, x.norm(dim=(0, 1)).var)
    assert torch.equal(torch.var(x, False).var, torch.var(x, correction=0).var)
    assert torch.equal(torch.var(x, 1, False, True).var, torch.var(x, 1, correction=0, keepdim=True).var)
    assert torch.norm(x, dim=1, dtype=torch.float64).shape == (2, 8)
    assert torch.norm(mnvi.Gaussian(torch.tensor(-2.0), torch.tensor(0.0))).mean == 2


def test_a_hand_written_rms_norm_is_as_good_as_the_rule():
    """The factors share their entries, each to a small part: with 64 entries the error is a few percent."""

    def by_hand(x):
        return x * torch.rsqrt(torch.mean(torch.square(x), -1, keepdim=True) + 1e-6)

    x = gaussian(4, 64)
    mean, _, var, _ = sampled(by_hand, x, num_samples=40_000)
    for out in (by_hand(x), F.rms_norm(x, (64,), eps=1e-6)):
        assert (out.mean - mean).square().mean().sqrt() <= 0.015
        assert (out.std / var.sqrt() - 1).square().mean().sqrt() <= 0.06


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: torch.linalg.vector_norm(x, 0), ValueError, "p=0 must be a finite number >= 1"),
        (lambda x: torch.norm(x[0], "nuc"), ValueError, "p='nuc' has no rule"),
        (lambda x: torch.linalg.norm(x[0], 2), ValueError, "ord=2 of matrices has no rule"),
        (lambda x: torch.linalg.matrix_norm(x, "nuc"), ValueError, "ord='nuc' of matrices has no rule"),
        (lambda x: torch.var(x[..., :1], -1), ValueError, "1 entries with correction=1 leave nothing to divide by"),
        (lambda x: torch.cosine_similarity(x, x), TypeError, "with itself it is 1"),
        (lambda x: torch.dist(x, x), TypeError, "to itself is zero"),
    ],
)
def test_what_has_no_meaning_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(apart())


def test_compile_without_graph_breaks():
    def several(x):
        lengths = torch.norm(x, dim=-1, keepdim=True) + torch.std(x, -1, keepdim=True)
        return F.local_response_norm(x / lengths.mean, 3) + torch.cosine_similarity(x, x.mean, dim=-1).unsqueeze(-1)

    x = gaussian(2, 3, 8, dtype=torch.float32)
    expected, out = several(x), torch.compile(several, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))
