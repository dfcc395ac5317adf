"""Every kind of layer with every posterior through the conformance suite; compile and export of all at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_conformance import LayerConformance, Variant, assert_raises, random_input
from torch import nn

import mnvi

# torch warns about its own layers with even kernels; they are here on purpose, for their uneven padding
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        variants = metafunc.cls.variants
        metafunc.parametrize("variant", list(variants.values()), ids=list(variants))


class NoisePosterior:
    posterior = mnvi.MultiplicativeNoise(prior_variance=0.3)
    parameters = {"rho": lambda layer: (layer.in_units,)}
    calls_known_input = 2
    calls_random_input = 2


class FieldPosterior:
    posterior = mnvi.MeanField(prior_variance=0.3)
    parameters = {
        "log_var": lambda layer: tuple(layer.weight.shape),
        "bias_log_var": lambda layer: tuple(layer.bias.shape),
    }
    calls_known_input = 2
    calls_random_input = 3


class SharedPosterior:
    posterior = mnvi.SharedMeanField(prior_variance=0.3)
    parameters = {"log_var": lambda layer: (layer.in_units,)}
    calls_known_input = 2
    calls_random_input = 3


class LinearKind:
    kind = nn.Linear
    variants = {
        "batch": Variant({"in_features": 4, "out_features": 3}, (2, 4)),
        "no bias": Variant({"in_features": 4, "out_features": 3, "bias": False}, (2, 4)),
        "unbatched": Variant({"in_features": 4, "out_features": 3}, (4,)),
        "sequence": Variant({"in_features": 3, "out_features": 2}, (2, 2, 3)),
    }


def forward_variants(dims: int) -> dict[str, Variant]:
    size = {1: (7,), 2: (4, 3), 3: (3, 2, 3)}[dims]
    kernel = {1: (3,), 2: (3, 2), 3: (2, 1, 2)}[dims]
    plain = {"in_channels": 2, "out_channels": 2, "kernel_size": kernel}
    batch = (1, 2, *size)
    one = tuple(1 if k > 1 else 0 for k in kernel)
    grouped = {**plain, "in_channels": 4, "out_channels": 2, "groups": 2}
    return {
        "padded": Variant({**plain, "padding": one}, batch),
        "grouped": Variant(grouped, (1, 4, *size)),
        "batch of two, strided, no bias": Variant({**plain, "stride": 2, "bias": False}, (2, 2, *size)),
        "dilated": Variant({**plain, "dilation": 2, "padding": one}, batch),
        "depthwise": Variant({**plain, "out_channels": 4, "groups": 2}, batch),
        "unbatched": Variant({**plain, "padding": one}, (2, *size)),
        "same": Variant({**plain, "padding": "same"}, batch),
        "valid": Variant({**plain, "padding": "valid"}, batch),
        "circular": Variant({**plain, "padding": one, "padding_mode": "circular"}, batch),
        "reflect": Variant({**plain, "padding": one, "padding_mode": "reflect"}, batch, distinct=False),
        "replicate": Variant({**plain, "padding": one, "padding_mode": "replicate"}, batch, distinct=False),
        "same, replicate, unbatched": Variant(
            {**plain, "padding": "same", "padding_mode": "replicate"}, (2, *size), distinct=False
        ),
    }


def transposed_variants(dims: int) -> dict[str, Variant]:
    size = {1: (4,), 2: (2, 3), 3: (2, 1, 2)}[dims]
    kernel = {1: (3,), 2: (3, 2), 3: (2, 1, 2)}[dims]
    plain = {"in_channels": 2, "out_channels": 2, "kernel_size": kernel}
    batch = (1, 2, *size)
    strided = {**plain, "stride": 2}
    wanted = [(n - 1) * 2 + k + 1 for n, k in zip(size, kernel, strict=True)]
    return {
        "plain": Variant(plain, batch),
        "grouped": Variant({**plain, "in_channels": 4, "groups": 2}, (1, 4, *size)),
        "batch of two, strided, padded, no bias": Variant(
            {**strided, "padding": tuple(int(k > 1) for k in kernel), "bias": False}, (2, 2, *size)
        ),
        "dilated, grouped": Variant({**plain, "out_channels": 4, "groups": 2, "dilation": 2}, batch),
        "output padding": Variant({**strided, "output_padding": 1}, batch),
        "output size": Variant(strided, batch, call={"output_size": wanted}),
        "unbatched": Variant({**strided, "output_padding": 1}, (2, *size)),
    }


class Conv1dKind:
    kind = nn.Conv1d
    variants = forward_variants(1)


class Conv2dKind:
    kind = nn.Conv2d
    variants = forward_variants(2)


class Conv3dKind:
    kind = nn.Conv3d
    variants = forward_variants(3)


class ConvTranspose1dKind:
    kind = nn.ConvTranspose1d
    variants = transposed_variants(1)


class ConvTranspose2dKind:
    kind = nn.ConvTranspose2d
    variants = transposed_variants(2)


class ConvTranspose3dKind:
    kind = nn.ConvTranspose3d
    variants = transposed_variants(3)


class TestLinearNoise(LinearKind, NoisePosterior, LayerConformance): ...


class TestLinearField(LinearKind, FieldPosterior, LayerConformance): ...


class TestLinearShared(LinearKind, SharedPosterior, LayerConformance): ...


class TestConv1dNoise(Conv1dKind, NoisePosterior, LayerConformance): ...


class TestConv1dField(Conv1dKind, FieldPosterior, LayerConformance): ...


class TestConv1dShared(Conv1dKind, SharedPosterior, LayerConformance): ...


class TestConv2dNoise(Conv2dKind, NoisePosterior, LayerConformance): ...


class TestConv2dField(Conv2dKind, FieldPosterior, LayerConformance): ...


class TestConv2dShared(Conv2dKind, SharedPosterior, LayerConformance): ...


class TestConv3dNoise(Conv3dKind, NoisePosterior, LayerConformance): ...


class TestConv3dField(Conv3dKind, FieldPosterior, LayerConformance): ...


class TestConv3dShared(Conv3dKind, SharedPosterior, LayerConformance): ...


class TestConvTranspose1dNoise(ConvTranspose1dKind, NoisePosterior, LayerConformance): ...


class TestConvTranspose1dField(ConvTranspose1dKind, FieldPosterior, LayerConformance): ...


class TestConvTranspose1dShared(ConvTranspose1dKind, SharedPosterior, LayerConformance): ...


class TestConvTranspose2dNoise(ConvTranspose2dKind, NoisePosterior, LayerConformance): ...


class TestConvTranspose2dField(ConvTranspose2dKind, FieldPosterior, LayerConformance): ...


class TestConvTranspose2dShared(ConvTranspose2dKind, SharedPosterior, LayerConformance): ...


class TestConvTranspose3dNoise(ConvTranspose3dKind, NoisePosterior, LayerConformance): ...


class TestConvTranspose3dField(ConvTranspose3dKind, FieldPosterior, LayerConformance): ...


class TestConvTranspose3dShared(ConvTranspose3dKind, SharedPosterior, LayerConformance): ...


class AllKinds(nn.Module):
    """One layer of every kind, each called on its own inputs: a random and a known one."""

    def __init__(self, posterior: mnvi.Posterior) -> None:
        super().__init__()
        kinds = [LinearKind, Conv1dKind, Conv2dKind, Conv3dKind]
        kinds += [ConvTranspose1dKind, ConvTranspose2dKind, ConvTranspose3dKind]
        chosen = [
            kind.variants[name] for kind in kinds for name in kind.variants if name in ("batch", "grouped", "same")
        ]
        self.layers = nn.ModuleList()
        self.inputs = []
        for kind in kinds:
            for variant in kind.variants.values():
                if variant in chosen:
                    self.layers.append(mnvi.convert(kind.kind(**variant.arguments), posterior))
                    self.inputs.append(random_input(variant))

    def forward(self, inputs: list[mnvi.Gaussian]) -> list[tuple[mnvi.Gaussian, mnvi.Gaussian]]:
        return [(layer(x), layer(x.mean)) for layer, x in zip(self.layers, inputs, strict=True)]


POSTERIORS = [mnvi.MultiplicativeNoise(0.3), mnvi.MeanField(0.3, -2.0), mnvi.SharedMeanField(0.3, -2.0)]


def assert_same(ours: Any, theirs: Any) -> None:
    flat, expected = torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs)
    assert len(flat) == len(expected) > 0
    for a, b in zip(flat, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)
def test_all_kinds_compile_without_graph_breaks_and_have_the_same_gradients(posterior: mnvi.Posterior) -> None:
    model = AllKinds(posterior)

    def loss(inputs: list[mnvi.Gaussian]) -> torch.Tensor:
        parts = [g for pair in model(inputs) for g in pair]
        return torch.stack([g.mean.square().sum() + g.var.sum() for g in parts]).sum() + mnvi.kl_divergence(model)

    # only tracing can break here; inductor's kernels would take a minute to build and are torch's concern
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected, value = loss(model.inputs), compiled(model.inputs)
    parameters = list(model.parameters())
    torch.testing.assert_close(value, expected)
    assert_same(torch.autograd.grad(value, parameters), torch.autograd.grad(expected, parameters))


@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)
def test_all_kinds_export(posterior: mnvi.Posterior) -> None:
    model = AllKinds(posterior)
    exported = torch.export.export(model, (model.inputs,)).module()
    assert_same(exported(model.inputs), model(model.inputs))


def test_transposed_fan_in_counts_the_inputs_of_one_output() -> None:
    layer = mnvi.layers.ConvTranspose2d(4, 6, (3, 2), groups=2, posterior=mnvi.MeanField(1.0))
    assert layer.fan_in == 2 * 3 * 2
    assert mnvi.layers.Conv2d(4, 6, (3, 2), groups=2, posterior=mnvi.MeanField(1.0)).fan_in == 2 * 3 * 2
    assert mnvi.layers.Linear(4, 6, posterior=mnvi.MeanField(1.0)).fan_in == 4


def test_posterior_of_a_wrong_type_is_refused() -> None:
    assert_raises(
        TypeError, "posterior must be e.g. mnvi.MultiplicativeNoise", lambda: mnvi.layers.Linear(2, 2, posterior=1.0)
    )


def test_printing_a_layer_shows_its_posterior() -> None:
    layer = mnvi.layers.Linear(2, 3, posterior=mnvi.MultiplicativeNoise(0.5))
    assert "in_features=2, out_features=3, bias=True, posterior=MultiplicativeNoise(prior_variance=0.5" in repr(layer)


def test_empty_batch_gives_an_empty_gaussian() -> None:
    for posterior in POSTERIORS:
        out = mnvi.layers.Conv2d(2, 3, 3, posterior=posterior)(torch.zeros(0, 2, 5, 5))
        assert out.mean.shape == out.var.shape == (0, 3, 3, 3)
