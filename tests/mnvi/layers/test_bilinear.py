"""The bilinear layer: moments against sampling, limits, gradients, state, inference."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import mnvi

POSTERIORS = [mnvi.MultiplicativeNoise(0.3), mnvi.MeanField(0.3, -2.0), mnvi.SharedMeanField(0.3, -2.0)]
WITH_EACH = pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)
SAMPLES, STANDARD_ERRORS = 100_000, 5.0


def layer_of(posterior: mnvi.Posterior, bias: bool = True) -> mnvi.layers.Bilinear:
    torch.manual_seed(0)
    layer = mnvi.convert(nn.Bilinear(3, 2, 4, bias=bias), posterior)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name not in layer.own_names:
                parameter.uniform_(-3.0, 0.0)
    return layer


def inputs(left: bool, right: bool) -> tuple:
    torch.manual_seed(1)
    x, z = torch.randn(1, 3), torch.randn(1, 2)
    return (
        mnvi.Gaussian(x, torch.rand_like(x)) if left else x,
        mnvi.Gaussian(z, torch.rand_like(z)) if right else z,
    )


@WITH_EACH
@pytest.mark.parametrize(("left", "right"), [(False, False), (True, False), (False, True), (True, True)])
@torch.no_grad()
def test_moments_are_those_of_sampled_weights_and_inputs(posterior: mnvi.Posterior, left: bool, right: bool) -> None:
    layer, (x, z) = layer_of(posterior), inputs(left, right)
    out = layer(x, z)

    def drawn(value: mnvi.Gaussian | Tensor) -> Tensor:
        return value.sample(SAMPLES)[:, 0] if isinstance(value, mnvi.Gaussian) else value.expand(SAMPLES, -1)

    spread = layer.weight_variance().sqrt()
    weight = layer.weight + spread * torch.randn(SAMPLES, *spread.shape)
    values = torch.einsum("si,skij,sj->sk", drawn(x), weight, drawn(z)) + layer.bias
    if (bias_spread := layer.bias_variance()) is not None:
        values = values + bias_spread.sqrt() * torch.randn_like(values)
    centred = (values - out.mean).double()
    var = centred.square().mean(0)
    assert (centred.mean(0).abs() <= STANDARD_ERRORS * (var / SAMPLES).sqrt()).all()
    error = ((centred.pow(4).mean(0) - var.square()) / SAMPLES).sqrt()
    assert ((var - out.var[0]).abs() <= STANDARD_ERRORS * error).all()


@WITH_EACH
def test_zero_variance_is_the_deterministic_layer(posterior: mnvi.Posterior) -> None:
    torch.manual_seed(0)
    plain = nn.Bilinear(3, 2, 4)
    layer = mnvi.convert(plain, posterior)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name not in layer.own_names:
                parameter.fill_(-200.0)
    x, z = inputs(False, False)
    torch.testing.assert_close(layer(x, z).mean, plain(x, z))
    assert layer(x, z).var.max() == 0


@WITH_EACH
def test_precision_gradients_and_state(posterior: mnvi.Posterior) -> None:
    layer, (x, z) = layer_of(posterior), inputs(True, True)
    precise = copy.deepcopy(layer).double()
    out = layer(x, z)
    torch.testing.assert_close(out.var.double(), precise(x.double(), z.double()).var, rtol=1e-5, atol=1e-7)
    names, values = zip(*precise.named_parameters(), strict=True)
    parts = [t.double() for t in (x.mean, x.var, z.mean, z.var)]

    def moments(a: Tensor, b: Tensor, c: Tensor, d: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        given = mnvi.Gaussian.trusted(a, b), mnvi.Gaussian.trusted(c, d)
        out = torch.func.functional_call(precise, dict(zip(names, parameters, strict=True)), given)
        return out.mean, out.var

    assert torch.autograd.gradcheck(moments, [t.detach().requires_grad_() for t in (*parts, *values)], fast_mode=True)
    fresh = mnvi.convert(nn.Bilinear(3, 2, 4), posterior)
    fresh.load_state_dict(layer.state_dict())
    fast = mnvi.optimize_for_inference(layer, compile=False)
    for other in (fresh, pickle.loads(pickle.dumps(layer)), fast):
        torch.testing.assert_close(other(x, z).mean, out.mean)
        torch.testing.assert_close(other(x, z).var, out.var)


def test_kl_counts_every_weight() -> None:
    layer = mnvi.convert(nn.Bilinear(3, 2, 4, bias=False), mnvi.MeanField(1.0, 0.0))
    torch.testing.assert_close(mnvi.kl_divergence(layer), 0.5 * layer.weight.square().sum())


def test_sampled_gives_tensors_and_export_works() -> None:
    x, z = inputs(False, False)
    assert isinstance(mnvi.convert(nn.Bilinear(3, 2, 4), mnvi.Sampled(POSTERIORS[0]))(x, z), Tensor)
    layer = layer_of(POSTERIORS[0])
    exported = torch.export.export(layer, (x, z)).module()(x, z)
    torch.testing.assert_close(exported.var, layer(x, z).var)


def test_one_random_value_as_both_inputs_is_refused() -> None:
    x = mnvi.Gaussian(torch.zeros(1, 3), torch.ones(1, 3))
    layer = mnvi.convert(nn.Bilinear(3, 3, 2), POSTERIORS[0])
    with pytest.raises(ValueError, match="both inputs are the same random value"):
        layer(x, x)


def test_one_draw_of_the_weights_gives_a_bilinear_form() -> None:
    layer, (x, z) = layer_of(POSTERIORS[0]), inputs(False, False)
    with mnvi.comparison.drawn_weights(layer):
        out = layer(x, z)
        torch.testing.assert_close(layer(2 * x, z) - layer.bias, 2 * (out - layer.bias))
    assert isinstance(out, Tensor) and not torch.equal(out, layer(x, z).mean)
