"""Pooling against sampling, torch and naive windows."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from rule_checks import (
    assert_gradients_are_right,
    assert_moments_are_those_of_samples,
    assert_zero_variance_is_deterministic,
    gaussian,
    sampled,
)
from torch import nn

import mnvi
from mnvi.moments.tracing import for_compiler

LENGTHS = (7, 6, 5)
AVERAGES = {
    "plain": {"kernel_size": 2},
    "stride": {"kernel_size": 3, "stride": 2},
    "padding": {"kernel_size": 3, "stride": 2, "padding": 1},
    "padding not counted": {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    "ceil": {"kernel_size": 2, "stride": 2, "ceil_mode": True},
    "ceil and padding": {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True},
    "all": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
}
MAXIMA = {
    "plain": {"kernel_size": 2},
    "stride": {"kernel_size": 3, "stride": 2},
    "padding": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilation": {"kernel_size": 2, "stride": 1, "dilation": 2},
    "ceil": {"kernel_size": 2, "stride": 2, "ceil_mode": True},
    "all": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
}


def image(dims, **kwargs):
    return gaussian(1, 2, *LENGTHS[:dims], **kwargs)


def function(name, dims):
    return getattr(F, f"{name}{dims}d")


def exact_variance(linear, var):
    """Σ w² v with the weights read off the linear map itself, one unit vector after the other."""
    units = torch.eye(var.numel(), dtype=var.dtype).reshape(-1, *var.shape)
    weights = torch.stack([linear(unit) for unit in units])
    return (weights.square() * var.reshape(-1, *(1 for _ in weights.shape[1:]))).sum(0)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("case", AVERAGES)
def test_average_has_the_variance_of_its_weights(case, dims):
    pool = function("avg_pool", dims)
    x = image(dims)
    out = pool(x, **AVERAGES[case])
    torch.testing.assert_close(out.mean, pool(x.mean, **AVERAGES[case]))
    torch.testing.assert_close(out.var, exact_variance(lambda t: pool(t, **AVERAGES[case]), x.var))


@pytest.mark.parametrize("dims", [2, 3])
def test_average_with_a_divisor_of_its_own(dims):
    x, options = image(dims), {"kernel_size": 2, "padding": 1, "divisor_override": 3}
    pool = function("avg_pool", dims)
    torch.testing.assert_close(pool(x, **options).var, exact_variance(lambda t: pool(t, **options), x.var))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, "mixed"])
def test_adaptive_average_is_exact_for_uneven_windows(size, dims):
    size = (3, 1, None)[-dims:] if size == "mixed" else size
    size = 3 if size == (None,) else size
    pool = function("adaptive_avg_pool", dims)
    x = image(dims)
    out = pool(x, size)
    torch.testing.assert_close(out.mean, pool(x.mean, size))
    torch.testing.assert_close(out.var, exact_variance(lambda t: pool(t, size), x.var))


def test_average_moments_are_those_of_samples():
    assert_moments_are_those_of_samples(F.adaptive_avg_pool2d, image(2), 4)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("case", MAXIMA)
def test_maximum_passes_on_the_variance_of_the_largest_mean(case, dims):
    pool, x = function("max_pool", dims), image(dims)
    out = pool(x, **MAXIMA[case])
    torch.testing.assert_close(out.mean, pool(x.mean, **MAXIMA[case]))
    places = (out.mean.reshape(-1, 1) == x.mean.reshape(1, -1)).double().argmax(1)
    assert torch.equal(out.var.flatten(), x.var.flatten()[places])


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("choice", ["argmax", "clark"])
def test_indices_are_returned_when_asked_for(choice, dims):
    x = image(dims)
    with mnvi.options(max_pool=choice):
        for pool, size in ((function("max_pool", dims), 2), (function("adaptive_max_pool", dims), 3)):
            out, indices = pool(x, size, return_indices=True)
            assert isinstance(out, mnvi.Gaussian)
            assert torch.equal(indices, pool(x.mean, size, return_indices=True)[1])


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_maximum_passes_on_the_variance_of_the_largest_mean(dims):
    pool, x = function("adaptive_max_pool", dims), image(dims)
    out = pool(x, 3)
    assert torch.equal(out.mean, pool(x.mean, 3))
    places = (out.mean.reshape(-1, 1) == x.mean.reshape(1, -1)).double().argmax(1)
    assert torch.equal(out.var.flatten(), x.var.flatten()[places])


@pytest.mark.parametrize(
    "module",
    [
        nn.MaxPool1d(2), nn.MaxPool2d(2), nn.MaxPool3d(2), nn.AvgPool1d(2), nn.AvgPool2d(2), nn.AvgPool3d(2),
        nn.AdaptiveAvgPool1d(2), nn.AdaptiveAvgPool2d((2, None)), nn.AdaptiveAvgPool3d(2),
        nn.AdaptiveMaxPool1d(2), nn.AdaptiveMaxPool2d(2), nn.AdaptiveMaxPool3d(2),
    ],
    ids=lambda m: type(m).__name__,
)  # fmt: skip
def test_modules_without_a_batch_and_with_zero_variance(module):
    dims = int(type(module).__name__[-2])
    assert_zero_variance_is_deterministic(module, image(dims))
    assert_zero_variance_is_deterministic(module, image(dims)[0])


@pytest.mark.parametrize("direct", [torch.max_pool2d, torch.max_pool1d, torch.adaptive_avg_pool1d, torch.avg_pool1d])
def test_torchs_own_spellings_are_answered(direct):
    x = image(1 if "1d" in direct.__name__ else 2)
    torch.testing.assert_close(direct(x, 2).mean, direct(x.mean, 2))


@pytest.mark.parametrize("direct", [torch.adaptive_max_pool1d, torch.max_pool1d_with_indices])
def test_torchs_own_spellings_that_return_indices(direct):
    out, indices = direct(image(1), 2)
    mean, expected = direct(image(1).mean, 2)
    assert torch.equal(out.mean, mean)
    assert torch.equal(indices, expected)


def naive_clark(x, places):
    """Tree over the window's entries, one pair at a time, by Clark's formulas as he printed them."""
    entries = [(x.mean.flatten()[i].item(), x.var.flatten()[i].item()) for i in places]
    while len(entries) > 1:
        pairs = []
        for (m1, v1), (m2, v2) in zip(entries[::2], entries[1::2], strict=False):
            a = math.sqrt(v1 + v2)
            d = (m1 - m2) / a
            density = math.exp(-d * d / 2) / math.sqrt(2 * math.pi)
            cdf = 0.5 * math.erfc(-d / math.sqrt(2))
            first = m1 * cdf + m2 * (1 - cdf) + a * density
            second = (m1**2 + v1) * cdf + (m2**2 + v2) * (1 - cdf) + (m1 + m2) * a * density
            pairs.append((first, second - first**2))
        entries = pairs + (entries[-1:] if len(entries) % 2 else [])
    return entries[0]


@pytest.mark.parametrize("case", [c for c in MAXIMA if "all" not in c and "padding" not in c])
def test_clark_pools_the_windows_in_the_documented_order(case):
    x, options = gaussian(1, 1, 5, 6), MAXIMA[case]
    with mnvi.options(max_pool="clark"):
        out = F.max_pool2d(x, **options)
    kernel, stride = options["kernel_size"], options.get("stride", options["kernel_size"])
    dilation = options.get("dilation", 1)
    for i, j in itertools.product(range(out.shape[2]), range(out.shape[3])):
        places = [
            row * 6 + column
            for row in range(i * stride, i * stride + dilation * kernel, dilation)
            for column in range(j * stride, j * stride + dilation * kernel, dilation)
            if row < 5 and column < 6
        ]
        if len(places) < kernel * kernel:
            continue  # a window cut off at the border is paired over its own entries: tested below
        mean, var = naive_clark(x, places)
        assert out.mean[0, 0, i, j].item() == pytest.approx(mean, abs=1e-9)
        assert out.var[0, 0, i, j].item() == pytest.approx(var, abs=1e-9)


@pytest.mark.parametrize("case", MAXIMA)
def test_clark_is_close_to_sampling_and_padding_takes_no_part(case):
    x = gaussian(1, 1, 5, 6)
    x = mnvi.Gaussian(x.mean - 100, x.var)  # a padding of zeros would win
    with mnvi.options(max_pool="clark"):
        out = F.max_pool2d(x, **MAXIMA[case])
    mean, _, var, _ = sampled(F.max_pool2d, x, **MAXIMA[case])
    assert (out.mean - mean).abs().max() < 0.05
    assert (out.var.sqrt() / var.sqrt() - 1).abs().max() < 0.12


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_clark_adaptive_is_close_to_sampling(size):
    x = gaussian(1, 1, 7)
    with mnvi.options(max_pool="clark"):
        out = F.adaptive_max_pool1d(x, size)
    mean, _, var, _ = sampled(F.adaptive_max_pool1d, x, size)
    assert (out.mean - mean).abs().max() < 0.05
    assert (out.var.sqrt() / var.sqrt() - 1).abs().max() < 0.12


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_clark_without_variance_is_the_maximum(dims):
    with mnvi.options(max_pool="clark"):
        x = image(dims)
        out = function("max_pool", dims)(mnvi.Gaussian(x.mean, torch.zeros_like(x.var)), 2)
    torch.testing.assert_close(out.mean, function("max_pool", dims)(x.mean, 2))
    assert (out.var < 1e-20).all()


@pytest.mark.parametrize("operation", [torch.maximum, torch.minimum])
def test_maximum_and_minimum_of_two_are_exact(operation):
    assert_moments_are_those_of_samples(operation, gaussian(3, 4), gaussian(4, seed=2))
    assert_moments_are_those_of_samples(operation, gaussian(3, 4), torch.zeros(4, dtype=torch.float64))
    assert_gradients_are_right(operation, gaussian(3, 4), gaussian(4, seed=2))


@pytest.mark.parametrize("choice", ["argmax", "clark"])
def test_gradients(choice):
    with mnvi.options(max_pool=choice):
        assert_gradients_are_right(F.max_pool2d, image(2), 3, stride=2, padding=1)
    assert_gradients_are_right(F.avg_pool2d, image(2), 3, stride=2, padding=1, count_include_pad=False)
    assert_gradients_are_right(F.adaptive_avg_pool2d, image(2), 4)


def several(x):
    pooled = F.max_pool2d(x, 3, 2, 1) + F.adaptive_max_pool2d(x, (4, 3))
    return F.adaptive_avg_pool2d(pooled + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), 2)


@pytest.mark.parametrize("choice", ["argmax", "clark"])
def test_compile_without_graph_breaks(choice):
    x = image(2, dtype=torch.float32)
    with mnvi.options(max_pool=choice):
        expected, out = several(x), torch.compile(several, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.var, expected.var)


def test_vmap_over_examples():
    x = gaussian(3, 2, 6, 6)
    pool = nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2))
    out = torch.func.vmap(pool)(x)
    torch.testing.assert_close(out.mean, pool(x).mean)
    torch.testing.assert_close(out.var, pool(x).var)


REDUCTIONS = {
    "amax": lambda x: torch.amax(x, 1),
    "amax over two, kept": lambda x: torch.amax(x, (0, -1), keepdim=True),
    "amax over all": lambda x: x.amax(),
    "amin": lambda x: torch.amin(x, 2),
    "max": lambda x: torch.max(x, 1).values,
    "max, kept": lambda x: x.max(1, keepdim=True)[0],
    "max over all": lambda x: torch.max(x),
    "min": lambda x: torch.min(x, -1)[0],
    "min over all": lambda x: x.min(),
}


@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions_are_those_of_samples_where_one_entry_is_surely_the_extreme(case):
    order = torch.randperm(2 * 3 * 4, generator=torch.Generator().manual_seed(0)).double().view(2, 3, 4)
    x = mnvi.Gaussian(10 * order, 0.1 + torch.rand(2, 3, 4, dtype=torch.float64))
    assert_moments_are_those_of_samples(REDUCTIONS[case], x)
    assert_zero_variance_is_deterministic(REDUCTIONS[case], x)
    assert_gradients_are_right(REDUCTIONS[case], x)


@pytest.mark.parametrize("case", ["amax", "amin", "max", "min"])
def test_clark_reductions_are_exact_for_two_entries(case):
    x = gaussian(2, 2, 2)
    with mnvi.options(max_pool="clark"):
        assert_moments_are_those_of_samples(REDUCTIONS[case], x)


def test_reductions_agree_with_pooling_over_one_window():
    x = gaussian(2, 3, 7)
    for choice in ("argmax", "clark"):
        with mnvi.options(max_pool=choice):
            pooled, reduced = F.max_pool1d(x, 7)[..., 0], torch.amax(x, -1)
        torch.testing.assert_close((pooled.mean, pooled.var), (reduced.mean, reduced.var))


def test_max_and_min_along_a_dimension_say_where():
    x = gaussian(3, 4)
    for function in (torch.max, torch.min):
        assert torch.equal(function(x, 1).indices, function(x.mean, 1).indices)


def test_max_of_two_values_is_their_maximum():
    x, y = gaussian(3, 4), gaussian(3, 4, seed=1)
    assert torch.equal(torch.max(x, y).var, torch.maximum(x, y).var)
    assert torch.equal(torch.min(x, other=y.mean).var, torch.minimum(x, y.mean).var)


def test_reductions_compile():
    x = gaussian(3, 4)
    out = torch.compile(lambda x: torch.amax(x, 1) + torch.max(x, 1)[0], fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(out.mean, 2 * x.mean.amax(1))


@pytest.mark.parametrize("settings", MAXIMA.values(), ids=MAXIMA)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("rectified", [False, True])
def test_maximum_written_for_the_compiler_is_the_same(dims, settings, rectified):
    """Entries are equal in places, and one is NaN: the first of equals wins, and NaN wins over all."""
    torch.manual_seed(0)
    mean = torch.randn(2, 3, *LENGTHS[:dims]).mul(2).round()
    mean.view(-1)[5] = math.nan
    x = mnvi.Gaussian(mean, torch.rand_like(mean))
    pool = getattr(F, f"max_pool{dims}d")

    def pooled():
        return pool(torch.relu(x) if rectified else x, **settings)

    with for_compiler():
        fused = pooled()
    torch.testing.assert_close(fused.mean, pooled().mean, equal_nan=True)
    torch.testing.assert_close(fused.var, pooled().var, equal_nan=True)


@pytest.mark.parametrize("change", [lambda y: y.add_(1.0), lambda y: y.become(y * 2), lambda y: y + 1, lambda y: y[:1]])
def test_what_happens_between_relu_and_maximum_counts(change):
    x = gaussian(2, 3, 4, 4)
    expected = F.max_pool2d(change(torch.relu(x)), 2)
    with for_compiler():
        found = F.max_pool2d(change(torch.relu(x)), 2)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.var, expected.var)


def test_maximum_after_a_relu_in_place_and_with_clarks_rule():
    x = gaussian(2, 3, 4, 4)
    expected = F.max_pool2d(torch.relu(x), 2)
    with for_compiler():
        found = F.max_pool2d(F.relu(x.map(torch.clone), inplace=True), 2)
        with mnvi.options(max_pool="clark"):
            clark = F.max_pool2d(torch.relu(x), 2)
    torch.testing.assert_close(found.var, expected.var)
    with mnvi.options(max_pool="clark"):
        torch.testing.assert_close(clark.mean, F.max_pool2d(torch.relu(x), 2).mean)
