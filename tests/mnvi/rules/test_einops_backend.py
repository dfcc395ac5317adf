"""The functions of einops on a Gaussian do what they do on its mean and its variance."""

import pytest
import torch
from rule_checks import assert_gradients_are_right, assert_moments_are_those_of_samples, gaussian
from torch import nn
from torch_versions import newer_torch

import mnvi

einops = pytest.importorskip("einops", exc_type=ImportError)

REARRANGEMENTS = {
    "rearrange": lambda t: einops.rearrange(t, "b (h w) c -> b c h w", h=2),
    "transpose": lambda t: einops.rearrange(t, "b n c -> c b n"),
    "repeat": lambda t: einops.repeat(t, "b n c -> b (n r) c s", r=2, s=3),
    "stack of a list": lambda t: einops.rearrange([t, t[:, :6]], "k b n c -> b k n c"),
    "an ellipsis": lambda t: einops.rearrange(t, "b ... -> b (...)"),
}
REDUCTIONS = {
    "mean": lambda t: einops.reduce(t, "b n c -> b c", "mean"),
    "sum": lambda t: einops.reduce(t, "b (n k) c -> b n c", "sum", k=3),
    "prod": lambda t: einops.reduce(t, "b n (c k) -> b n c", "prod", k=2),
    "einsum": lambda t: einops.einsum(t, torch.ones(4, 5).double(), "b n c, c d -> b n d"),
}


@pytest.mark.parametrize("name", REARRANGEMENTS)
def test_rearrangements_treat_mean_and_variance_alike(name):
    x, function = gaussian(2, 6, 4), REARRANGEMENTS[name]
    out = function(x)
    assert torch.equal(out.mean, function(x.mean)) and torch.equal(out.var, function(x.var))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_have_the_moments_of_samples(name):
    assert_moments_are_those_of_samples(REDUCTIONS[name], gaussian(2, 6, 4))
    assert_gradients_are_right(REDUCTIONS[name], gaussian(2, 6, 4))


def test_the_largest_and_smallest_entry_follow_their_rules():
    x = gaussian(2, 6, 4)
    assert torch.equal(einops.reduce(x, "b n c -> b c", "max").var, torch.amax(x, 1).var)
    assert torch.equal(einops.reduce(x, "b n c -> b c", "min").var, torch.amin(x, 1).var)


def test_a_reduction_without_a_rule_is_refused():
    with pytest.raises(ValueError, match=r"reduction='any' has no rule for a Gaussian; known: mean"):
        einops.reduce(gaussian(2, 6, 4), "b n c -> b c", "any")


def test_pack_and_unpack_are_inverse():
    token, patches = gaussian(2, 4), gaussian(2, 6, 4, seed=1)
    packed, shapes = einops.pack([token, patches], "b * c")
    again = einops.unpack(packed, shapes, "b * c")
    assert packed.shape == (2, 7, 4)
    assert torch.equal(again[0].var, token.var) and torch.equal(again[1].mean, patches.mean)


def test_a_converted_model_with_the_layers_of_einops_runs_and_compiles():
    layers = pytest.importorskip("einops.layers.torch")
    patches = layers.Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
    net = nn.Sequential(patches, nn.Linear(48, 5), nn.GELU(), layers.Reduce("b n d -> b d", "sum"), nn.Linear(5, 2))
    bayesian, x = mnvi.convert(net, mnvi.MultiplicativeNoise(1e-2)), torch.randn(2, 3, 8, 8)
    out = bayesian(x)
    compiled = torch.compile(bayesian, backend="aot_eager")(x)
    torch.testing.assert_close((compiled.mean, compiled.var), (out.mean, out.var))


@newer_torch("torch 2.11 compiles no call of einops with a Gaussian")
def test_compile_without_graph_breaks():
    def attended(x):
        heads = einops.rearrange(x, "b n (h d) -> b h n d", h=2)
        return einops.reduce(torch.relu(heads), "b h n d -> b (h d)", "mean")

    x = gaussian(2, 6, 4, dtype=torch.float32)
    expected, out = attended(x), torch.compile(attended, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))
