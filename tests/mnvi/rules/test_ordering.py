"""Order and comparison by mean."""

import math

import pytest
import torch
from rule_checks import (
    assert_gradients_are_right,
    assert_moments_are_those_of_samples,
    assert_zero_variance_is_deterministic,
    gaussian,
)

import mnvi

CHOICES = {
    "topk": lambda x: torch.topk(x, 2).values,
    "smallest": lambda x: x.topk(3, 1, largest=False)[0],
    "sort": lambda x: torch.sort(x).values,
    "sort, descending": lambda x: x.sort(0, descending=True)[0],
    "msort": torch.msort,
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1).values,
    "kthvalue, kept": lambda x: x.kthvalue(2, 0, keepdim=True).values,
    "median": lambda x: torch.median(x, 1).values,
    "median of all": lambda x: x.median(),
}


def apart() -> mnvi.Gaussian:
    """Means many standard deviations apart, so that the order is sure."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0)).double().view(4, 5)
    return mnvi.Gaussian(20 * order, gaussian(4, 5).var)


@pytest.mark.parametrize("name", CHOICES)
def test_chosen_entries_have_the_moments_of_samples_where_the_order_is_sure(name):
    assert_moments_are_those_of_samples(CHOICES[name], apart())
    assert_zero_variance_is_deterministic(CHOICES[name], apart())
    assert_gradients_are_right(CHOICES[name], apart())


def test_positions_are_those_of_the_means():
    x = gaussian(4, 5)
    for function in (torch.argmax, torch.argmin, torch.argsort):
        assert torch.equal(function(x, 1), function(x.mean, 1))
    assert torch.equal(x.topk(2).indices, x.mean.topk(2).indices)
    assert torch.equal(torch.sort(x, 0).indices, torch.sort(x.mean, 0).indices)
    assert x.argmax() == x.mean.argmax()


def test_comparisons_are_those_of_the_means():
    x, y = gaussian(4, 5), gaussian(4, 5, seed=1)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        function = getattr(torch, name)
        assert torch.equal(function(x, y), function(x.mean, y.mean))
        assert torch.equal(function(x, 0.5), function(x.mean, 0.5))
        assert torch.equal(function(x.mean, y), function(x.mean, y.mean))
        assert torch.equal(getattr(x, name)(0.5), function(x.mean, 0.5))
    assert torch.equal(x > y.mean, x.mean > y.mean) and torch.equal(torch.ones(4, 5) >= x, x.mean <= 1)
    assert (x == x).all() and not (x != x).any()
    assert (x > 0).dtype == torch.bool


def test_a_mask_from_a_comparison_counts_as_known():
    x = gaussian(50)
    kept = torch.where(x > 0, x, 0.0)
    assert torch.equal(kept.var, torch.where(x.mean > 0, x.var, 0.0))
    assert not torch.allclose(kept.var, torch.relu(x).var)  # the module says so


def test_a_comparison_in_place_is_refused():
    with pytest.raises(mnvi.NoRuleError, match=r"gt_ on a Gaussian"):
        gaussian(3).gt_(0)


def test_numbers_that_are_not_finite_are_found_in_both_moments():
    x = mnvi.Gaussian.trusted(torch.tensor([0.0, math.nan, 1.0, 2.0]), torch.tensor([1.0, 1.0, math.inf, math.nan]))
    assert torch.isnan(x).tolist() == [False, True, False, True]
    assert x.isinf().tolist() == [False, False, True, False]
    assert torch.isfinite(x).tolist() == [True, False, False, False]


def test_a_single_entry_is_its_own_order():
    x = mnvi.Gaussian(torch.tensor(3.0), torch.tensor(0.5))
    for values, indices in (torch.sort(x, 0), x.topk(1), torch.median(x, 0)):
        assert values.var == 0.5 and indices == 0


def test_compile_without_graph_breaks():
    def chosen(x):
        return torch.where(x > 0, x, 0.0) + x.topk(1).values + torch.sort(x).values * (x <= x.mean)

    x = gaussian(4, 5, dtype=torch.float32)
    expected, out = chosen(x), torch.compile(chosen, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))
