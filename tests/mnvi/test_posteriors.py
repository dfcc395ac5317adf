"""Divergences and variances of the posteriors, beyond what every layer's conformance suite says."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import mnvi
from mnvi.layers.base import BayesianLayer
from mnvi.moments import divergence


def test_noise_divergence_in_float32_is_that_in_float64() -> None:
    weight, alpha = torch.randn(64, 32) * 0.05, torch.rand(32)
    exact = divergence.multiplicative_noise(weight.double(), alpha.double(), 1e-3)
    assert float(divergence.multiplicative_noise(weight, alpha, 1e-3)) == pytest.approx(float(exact), rel=1e-5)


def test_field_divergence_is_zero_only_at_the_prior() -> None:
    log_var = torch.full((3,), math.log(0.3))
    assert float(divergence.mean_field(torch.zeros(3), log_var, 0.3)) == pytest.approx(0.0, abs=1e-7)
    assert divergence.mean_field(torch.zeros(3), log_var + 1e-3, 0.3) > 0
    assert divergence.mean_field(torch.full((3,), 1e-3), log_var, 0.3) > 0


def test_field_divergence_near_the_prior_does_not_cancel_to_a_negative_number() -> None:
    log_var = math.log(1e-4) + 1e-4 * torch.randn(10_000)
    exact = divergence.mean_field(torch.zeros(10_000).double(), log_var.double(), 1e-4)
    value = divergence.mean_field(torch.zeros(10_000), log_var, 1e-4)
    assert value >= 0
    # log_var ≈ −9.2 itself is only known to 1e-6 in float32, a hundredth of the differences here
    assert float(value) == pytest.approx(float(exact), rel=0.05)


def test_model_divergence_is_the_sum_over_its_layers() -> None:
    net = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5)).double()
    for posterior in (mnvi.MultiplicativeNoise(0.1), mnvi.MeanField(0.1), mnvi.SharedMeanField(0.1)):
        model = mnvi.convert(net, posterior)
        expected = sum(layer.kl_divergence() for layer in mnvi.bayesian_layers(model))
        torch.testing.assert_close(mnvi.kl_divergence(model), expected)


def test_divergence_of_a_layer_in_torch_distributions_with_its_default_start() -> None:
    layer = mnvi.convert(nn.Linear(30, 20), mnvi.MeanField(prior_variance=1e-2)).double()
    prior = Normal(torch.zeros(1).double(), torch.full((1,), 0.1).double())
    expected = sum(
        kl_divergence(Normal(mean, log_var.exp().sqrt()), prior).sum()
        for mean, log_var in ((layer.weight, layer.log_var), (layer.bias, layer.bias_log_var))
    )
    torch.testing.assert_close(mnvi.kl_divergence(layer), expected, rtol=1e-7, atol=0.0)


def test_shared_module_counts_once() -> None:
    shared = nn.Linear(3, 3)
    twice = mnvi.convert(nn.Sequential(shared, nn.ReLU(), shared), mnvi.MeanField(1.0))
    once = mnvi.convert(shared, mnvi.MeanField(1.0))
    torch.testing.assert_close(mnvi.kl_divergence(twice), mnvi.kl_divergence(once))


def test_tied_weights_count_once() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    tied = mnvi.convert(nn.Sequential(first, second), mnvi.MultiplicativeNoise(1.0))
    once = mnvi.convert(first, mnvi.MultiplicativeNoise(1.0))
    torch.testing.assert_close(mnvi.kl_divergence(tied), mnvi.kl_divergence(once))


def test_layers_whose_weight_is_computed_on_access_all_count() -> None:
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    model = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0))
    expected = mnvi.kl_divergence(model)
    for layer in model:
        nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())
    torch.testing.assert_close(mnvi.kl_divergence(model), expected)


def test_a_prior_variance_that_would_make_the_divergence_negative_is_refused() -> None:
    assert divergence.multiplicative_noise(torch.zeros(1, 1), torch.ones(1), 1e-10) < 0
    for tiny in (1e-30, 1e-10, 9e-10):
        with pytest.raises(ValueError, match=f"prior_variance={tiny} must be a finite number >= 1e-09; for"):
            mnvi.MultiplicativeNoise(prior_variance=tiny)


def test_empirical_bayes_follows_its_formula_tensor_by_tensor() -> None:
    layer = mnvi.convert(nn.Linear(4, 3), mnvi.MeanField(mnvi.EmpiricalBayes(), init_log_var=-3.0)).double()
    layer.requires_grad_(False)
    a = 4.4798
    b = (1 + a) * 5.0 / 4
    expected = 0.0
    for mean, log_var in ((layer.weight, layer.log_var), (layer.bias, layer.bias_log_var)):
        m, total = mean.numel(), float((log_var.exp() + mean.square()).sum())
        ratio = (total + 2 * b) / (m + 2 * a + 2)
        expected += 0.5 * (m * math.log(ratio) + total / ratio - m - float(log_var.sum()))
    assert float(mnvi.kl_divergence(layer)) == pytest.approx(expected, rel=1e-9)


def test_posteriors_start_where_they_say() -> None:
    assert mnvi.convert(nn.Linear(2, 2), mnvi.MultiplicativeNoise(1.0)).rho.tolist() == [-3.0, -3.0]
    assert mnvi.convert(nn.Linear(2, 1), mnvi.MeanField(1.0, init_log_var=-20.0)).log_var.tolist() == [[-20.0, -20.0]]
    assert mnvi.convert(nn.Linear(2, 2), mnvi.SharedMeanField(1.0)).log_var.tolist() == [-10.0, -10.0]


def test_posteriors_are_values() -> None:
    assert mnvi.MeanField(1.0) == mnvi.MeanField(1.0) != mnvi.MeanField(2.0)
    assert len({mnvi.MeanField(1.0), mnvi.MeanField(1.0), mnvi.SharedMeanField(1.0)}) == 2
    with pytest.raises(AttributeError):
        mnvi.MeanField(1.0).prior_variance = 2.0


@dataclass(frozen=True)
class Weighted(mnvi.MeanField):
    weight: float = 1.0  # how much its KL counts

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        return self.weight * super().kl_divergence(layer)


def test_a_field_named_weight_is_no_drawn_weight() -> None:
    layer = mnvi.convert(nn.Embedding(4, 3), Weighted(1.0, weight=2.0))
    assert layer(torch.tensor([1])).var.shape == (1, 3)


def test_kl_divergences_asks_the_posterior_itself() -> None:
    layers = [mnvi.layers.Linear(3, 2, posterior=mnvi.MeanField(1.0)) for _ in range(2)]
    expected = sum(2.0 * layer.kl_divergence() for layer in layers)
    torch.testing.assert_close(Weighted(1.0, weight=2.0).kl_divergences(layers), expected)
