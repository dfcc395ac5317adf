"""Layers of other packages, known by name: moments against sampled weights, the deterministic layer, state, refusal."""

from __future__ import annotations

import copy
from typing import Any

import foreign_classes as foreign
import pytest
import torch
from torch import Tensor, nn

import mnvi
import mnvi._torchvision  # before packages that import torchvision
from mnvi.layers.foreign import KNOWN

POSTERIORS = [mnvi.MultiplicativeNoise(0.3), mnvi.MeanField(0.3, -2.0), mnvi.SharedMeanField(0.3, -2.0)]
SAMPLES, STANDARD_ERRORS = 4_000, 5.0

LAYERS = {
    "same": lambda: foreign.Conv2dSame(2, 3, 3, stride=2),
    "same, even kernel, grouped, no bias": lambda: foreign.Conv2dSame(4, 2, 4, stride=2, groups=2, bias=False),
    "static": lambda: foreign.Conv2dStaticSamePadding(2, 3, 3, stride=2, image_size=6),
    "standardised": lambda: foreign.StdConv2d(2, 3, 3, stride=2, padding=1),
    "scaled": lambda: foreign.ScaledStdConv2d(2, 3, 3),
    "scaled, same": lambda: foreign.ScaledStdConv2dSame(2, 3, 3, stride=2),
    "transposed": lambda: foreign.Conv1D(3, 4),
}
EACH = pytest.mark.parametrize("name", list(LAYERS))
WITH_EACH = pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)


def layer_of(name: str) -> Any:
    torch.manual_seed(0)
    return LAYERS[name]()


def example(layer: Any) -> Tensor:
    return torch.randn(2, 2, 4) if isinstance(layer, foreign.Conv1D) else torch.randn(2, layer.in_channels, 6, 6)


def bayesian(name: str, posterior: mnvi.Posterior = POSTERIORS[0]) -> Any:
    layer = mnvi.convert(layer_of(name), posterior)
    with torch.no_grad():
        for parameter in (p for key, p in layer.named_parameters() if key not in layer.own_names):
            parameter.uniform_(-3.0, 0.0)
    return layer


@EACH
@WITH_EACH
@torch.no_grad()
def test_moments_are_those_of_sampled_weights_and_inputs(name: str, posterior: mnvi.Posterior) -> None:
    layer = bayesian(name, posterior)
    x = mnvi.Gaussian(example(layer), torch.rand_like(example(layer)))
    affine, prepared = layer.prepared(x)
    out = layer(x)
    spread = layer.weight_variance().sqrt()
    bias_spread = layer.bias_variance()
    powers = torch.zeros(3, *out.shape, dtype=torch.float64)
    for _ in range(SAMPLES):
        weight = layer.weight + spread * torch.randn_like(spread)
        bias = layer.bias
        if bias_spread is not None:
            bias = bias + bias_spread.sqrt() * torch.randn_like(bias)
        drawn = affine(prepared.mean + prepared.var.sqrt() * torch.randn_like(prepared.var), weight, bias)
        centred = (drawn - out.mean).double()
        powers += torch.stack([centred, centred.square(), centred.pow(4)])
    shift, var, fourth = powers / SAMPLES
    assert (shift.abs() <= STANDARD_ERRORS * (var / SAMPLES).sqrt()).all()
    assert ((var - out.var).abs() <= STANDARD_ERRORS * ((fourth - var.square()) / SAMPLES).sqrt()).all()


@EACH
@WITH_EACH
def test_mean_is_the_given_layer_and_no_noise_means_no_variance(name: str, posterior: mnvi.Posterior) -> None:
    plain, layer = layer_of(name), bayesian(name, posterior)
    x = example(plain)
    torch.testing.assert_close(layer(x).mean, plain(x))
    with torch.no_grad():
        for parameter in (p for key, p in layer.named_parameters() if key not in layer.own_names):
            parameter.fill_(-200.0)
    assert layer(x).var.max() == 0


@EACH
def test_float32_agrees_with_float64_and_gradients_with_finite_differences(name: str) -> None:
    layer = bayesian(name)
    x = mnvi.Gaussian(example(layer), torch.rand_like(example(layer)))
    precise = copy.deepcopy(layer).double()
    torch.testing.assert_close(layer(x).var.double(), precise(x.double()).var, rtol=1e-5, atol=1e-6)
    names, values = zip(*precise.named_parameters(), strict=True)

    def moments(*parameters: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.func.functional_call(precise, dict(zip(names, parameters, strict=True)), (x.double(),))
        return out.mean, out.var

    assert torch.autograd.gradcheck(moments, [v.detach().requires_grad_() for v in values], fast_mode=True)


@EACH
@WITH_EACH
def test_names_and_classes_stay_and_the_optimised_layer_agrees(name: str, posterior: mnvi.Posterior) -> None:
    plain, layer = layer_of(name), bayesian(name, posterior)
    state = plain.state_dict()
    assert isinstance(layer, type(plain)) and type(layer).__name__ == type(plain).__name__
    assert [key for key in layer.state_dict() if key in state] == list(state)
    fresh = bayesian(name, posterior)
    fresh.load_state_dict(layer.state_dict())
    x = example(plain)
    fast = mnvi.optimize_for_inference(layer, compile=False)
    for other in (fresh, copy.deepcopy(layer), fast):
        torch.testing.assert_close(other(x).mean, layer(x).mean)
        torch.testing.assert_close(other(x).var, layer(x).var)


@EACH
def test_export(name: str) -> None:
    layer = bayesian(name)
    x = example(layer)
    mean, var = torch.export.export(Moments(layer), (x,)).module()(x)
    torch.testing.assert_close(mean, layer(x).mean)
    torch.testing.assert_close(var, layer(x).var)


class Moments(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(x)
        return out.mean, out.var


@pytest.mark.parametrize("name", ["same", "standardised"])
def test_a_batch_norm_behind_it_folds(name: str) -> None:
    net = nn.Sequential(layer_of(name), nn.BatchNorm2d(3))
    net(example(net[0]))
    bayesian = mnvi.convert(net.eval(), POSTERIORS[0])
    fast = mnvi.optimize_for_inference(bayesian, compile=False)
    x = example(net[0])
    assert type(fast[1]).__name__ == "FoldedBatchNorm"
    torch.testing.assert_close(fast(x).mean, net(x))
    torch.testing.assert_close(fast(x).var, bayesian(x).var)


def test_tied_layers_count_once_in_the_kl() -> None:
    first, second = layer_of("transposed"), layer_of("transposed")
    second.weight = first.weight
    both, one = (mnvi.convert(nn.Sequential(*layers), POSTERIORS[0]) for layers in ((first, second), (first,)))
    torch.testing.assert_close(mnvi.kl_divergence(both), mnvi.kl_divergence(one))


def test_a_class_of_a_known_name_that_computes_something_else_is_refused() -> None:
    @foreign.pretending("timm.layers.conv2d_same")
    class Conv2dSame(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return foreign.convolved(self, foreign.same_padded(self, x), self.weight.flip(-1))

    with pytest.raises(
        ValueError, match=r"layer '0' \(timm\.layers\.conv2d_same\.Conv2dSame\) computes something else"
    ):
        mnvi.convert(nn.Sequential(Conv2dSame(2, 3, 3)), POSTERIORS[0])


def test_an_activation_that_no_gaussian_can_pass_becomes_torchs() -> None:
    own, torchs = (
        mnvi.convert(nn.Sequential(nn.Linear(3, 4), f, nn.Linear(4, 2)), POSTERIORS[0])
        for f in (foreign.BloomGelu(), nn.GELU("tanh"))
    )
    torchs.load_state_dict(own.state_dict())
    x = torch.randn(5, 3)
    for training in (True, False):
        out, expected = own.train(training)(x), torchs.train(training)(x)
        torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))


def test_conversion_draws_no_random_numbers() -> None:
    layer = layer_of("same")
    before = torch.get_rng_state()
    mnvi.convert(layer, POSTERIORS[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("full_name", sorted(KNOWN))
def test_installed_packages_still_have_the_class_and_it_behaves(full_name: str) -> None:
    module, _, name = full_name.rpartition(".")
    cls: Any = getattr(pytest.importorskip(module, exc_type=ImportError), name)
    if issubclass(cls, nn.Conv2d):
        arguments = {"image_size": 7} if "Static" in name else {}
        layer = cls(4, 6, 3, stride=2, **arguments)
        x = torch.randn(2, 4, 7, 7)
    else:
        layer = cls(4, 3)
        x = torch.randn(2, 3) if name == "Conv1D" else torch.randn(2, 4)
    torch.testing.assert_close(mnvi.convert(layer, POSTERIORS[0])(x).mean, layer(x))
