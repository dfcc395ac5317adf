"""Products of many entries, and sums over indices of products of three and more operands."""

import pytest
import torch
from rule_checks import (
    assert_float32_keeps_the_digits_of_float64,
    assert_gradients_are_finite,
    assert_gradients_are_right,
    assert_half_precision_keeps_the_variance,
    assert_moments_are_those_of_samples,
    assert_zero_variance_is_deterministic,
    extremes,
    gaussian,
)

import mnvi

KNOWN = torch.randn(3, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
PRODUCTS = {
    "prod": lambda x: torch.prod(x, 1),
    "prod, kept": lambda x: x.prod(0, keepdim=True),
    "prod of five": lambda x: torch.prod(x[:, :5], -1),
    "prod of one": lambda x: torch.prod(x[:, :1], 1),
    "cumprod": lambda x: torch.cumprod(x, 1),
    "cumprod over rows": lambda x: x.cumprod(0),
}
SUMS = {
    "bilinear form": lambda x, y: torch.einsum("bi,ij,bj->b", x, KNOWN, y),
    "outer product": lambda x, y: torch.einsum("bi,bj,b->bij", x, y, KNOWN[0, :2]),
    "chain": lambda x, y: torch.einsum("bi,ij,cj->bc", x, KNOWN, y),
    "four operands": lambda x, y: torch.einsum("bi,ij,bj,jk->bk", x, KNOWN, y, KNOWN.T),
    "batched by an ellipsis": lambda x, y: torch.einsum("...i,ij,...j->...", x, KNOWN, y),
    "a diagonal": lambda x, y: torch.einsum("bi,ii,bj->bj", x, KNOWN[:, :3], y),
    "broadcast": lambda x, y: torch.einsum("bi,bj,b->ij", x[:1], y, KNOWN[0, :2]),
    "no index shared": lambda x, y: torch.einsum("bi,cj,k->k", x, y, KNOWN[0]),
    "known but for one": lambda x, y: torch.einsum("bi,ij,j->b", x, KNOWN, KNOWN[0]) * torch.ones(2).double(),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_moments_of_samples(name):
    assert_moments_are_those_of_samples(PRODUCTS[name], gaussian(3, 7, scale=0.3))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_without_variance_and_gradients(name):
    assert_zero_variance_is_deterministic(PRODUCTS[name], gaussian(3, 7))
    assert_gradients_are_right(PRODUCTS[name], gaussian(3, 7))


def test_a_product_of_zero_means_keeps_its_variance():
    out = torch.prod(mnvi.Gaussian(torch.zeros(5), torch.full((5,), 2.0)))
    assert out.mean == 0 and out.var == 32


def test_a_product_of_nothing_is_one():
    out = torch.prod(mnvi.Gaussian(torch.zeros(2, 0), torch.zeros(2, 0)), 1)
    assert torch.equal(out.mean, torch.ones(2)) and torch.equal(out.var, torch.zeros(2))


def test_a_product_of_all_entries_and_of_one_without_dimensions():
    x = gaussian(2, 3)
    expected = torch.prod(x.flatten(), 0)
    assert torch.equal(torch.prod(x).var, expected.var)
    single = mnvi.Gaussian(torch.tensor(2.0), torch.tensor(0.5))
    assert torch.prod(single).var == 0.5 and torch.cumprod(single, 0).var == 0.5


@pytest.mark.parametrize("name", ["prod", "cumprod"])
def test_float32_keeps_the_digits_of_float64_over_extreme_inputs(name):
    for x in extremes(3, 3):
        assert_float32_keeps_the_digits_of_float64(PRODUCTS[name], x, 1e-5)
        assert_gradients_are_finite(PRODUCTS[name], x)


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_indices_have_the_moments_of_samples(name):
    assert_moments_are_those_of_samples(SUMS[name], gaussian(2, 3), gaussian(2, 4, seed=1))


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_indices_without_variance_and_gradients(name):
    assert_zero_variance_is_deterministic(SUMS[name], gaussian(2, 3), gaussian(2, 4, seed=1))
    assert_gradients_are_right(SUMS[name], gaussian(2, 3), gaussian(2, 4, seed=1))


def test_three_random_operands_have_the_moments_of_samples():
    def scores(x, y, z):
        return torch.einsum("bi,ij,bj->b", x, y, z)

    operands = gaussian(2, 3, scale=0.3), gaussian(3, 4, seed=1, scale=0.3), gaussian(2, 4, seed=2, scale=0.3)
    assert_moments_are_those_of_samples(scores, *operands)


def test_two_operands_of_three_with_a_known_one_agree_with_two():
    x, y = gaussian(2, 3), gaussian(2, 3, seed=1)
    three, two = torch.einsum("bi,bi,->b", x, y, torch.tensor(1.0).double()), torch.einsum("bi,bi->b", x, y)
    torch.testing.assert_close((three.mean, three.var), (two.mean, two.var))


def test_half_precision_keeps_the_variance():
    def both(x):
        known = KNOWN[:, :3].to(x.dtype)
        return torch.einsum("bi,ij,bj->b", x, known, known[:2] + 1) + torch.prod(x, 1)

    assert_half_precision_keeps_the_variance(both, gaussian(2, 3))


def test_compile_without_graph_breaks():
    def several(x, y):
        return torch.einsum("bi,ij,bj->b", x, KNOWN.float(), y) + torch.prod(x, 1) + torch.cumprod(y, 1)[:, -1]

    x, y = gaussian(2, 3, dtype=torch.float32), gaussian(2, 4, dtype=torch.float32, seed=1)
    expected, out = several(x, y), torch.compile(several, fullgraph=True, backend="aot_eager")(x, y)
    torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))
