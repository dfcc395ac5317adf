"""Divergences and variances of the posteriors, beyond what every layer's conformance suite says."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import mnvi
from mnvi.moments import divergence


def test_noise_divergence_has_1e_10_inside_the_logarithm_for_every_size_of_weight() -> None:
    prior = 1e-2
    for weight in (0.0, 1e-9, 1e-7, 1e-5, 1e-3, 1.0):
        for alpha in (1e-6, 0.05, 1.0, 100.0):
            m, a = torch.tensor(weight, dtype=torch.float64), torch.tensor(alpha, dtype=torch.float64)
            inside = alpha * weight**2 + 1e-10
            expected = 0.5 * (math.log(prior / inside) + (1 + alpha) * weight**2 / prior - 1)
            assert float(divergence.multiplicative_noise(m, a, prior)) == pytest.approx(expected, rel=1e-12)


def test_noise_divergence_has_finite_gradients_at_zero_and_tiny_weights() -> None:
    weight = torch.tensor([[0.0, 1e-20, 1e-8, 1e-5, 1e-3]], requires_grad=True)
    rho = torch.full((5,), -3.0, requires_grad=True)
    divergence.multiplicative_noise(weight, nn.functional.softplus(rho), 1e-4).backward()
    assert weight.grad is not None and weight.grad.isfinite().all()
    assert rho.grad is not None and rho.grad.isfinite().all()
    # the slope of −½log(αw²+ε) is at most ½√(α/ε), reached at w² = ε/α
    assert weight.grad.abs().max() <= 0.5 * math.sqrt(0.05 / 1e-10) * 1.1


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


def test_divergence_has_right_second_derivatives() -> None:
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    alpha = (torch.rand(2, dtype=torch.float64) + 0.1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda w, a: divergence.multiplicative_noise(w, a, 0.5), (weight, alpha))


@pytest.mark.parametrize("prior_variance", [1e-9, 1e-8, 1e-4, 1.0])
def test_divergence_is_not_negative_down_to_the_smallest_prior_variance(prior_variance: float) -> None:
    weights = torch.cat([torch.zeros(1), torch.logspace(-8, 2, 201)]).double()
    for alpha in (1e-9, 1e-6, 1e-3, 0.05, 0.3, 1.0, 8.0):
        for weight in weights:
            noise = torch.full((1,), alpha, dtype=torch.float64)
            assert divergence.multiplicative_noise(weight.view(1, 1), noise, prior_variance) >= 0, (weight, alpha)


@pytest.mark.parametrize("prior_variance", [1e-9, 1e-8, 1e-5])
def test_divergence_is_not_negative_up_to_the_documented_noise_and_hardly_beyond(prior_variance: float) -> None:
    weight = torch.logspace(-12, 0, 4001, dtype=torch.float64)[:, None]
    largest = 1e10 * prior_variance - 2
    alpha = largest * torch.logspace(-12, 0, 25, dtype=torch.float64)
    each = torch.vmap(torch.vmap(lambda w, a: divergence.multiplicative_noise(w, a, prior_variance)))
    grid = torch.broadcast_tensors(weight, alpha)
    assert (each(*grid) >= 0).all()
    beyond = each(grid[0], 2 * largest + grid[1] * 1e6)
    assert beyond.min() < 0  # or the bound would be too low
    assert (beyond > -1e-10 / (2 * prior_variance)).all()


def test_a_prior_variance_that_would_make_the_divergence_negative_is_refused() -> None:
    assert divergence.multiplicative_noise(torch.zeros(1, 1), torch.ones(1), 1e-10) < 0
    for tiny in (1e-30, 1e-10, 9e-10):
        with pytest.raises(ValueError, match=f"prior_variance={tiny} must be at least 1e-09"):
            mnvi.MultiplicativeNoise(prior_variance=tiny)


def test_divergence_goes_through_forward_mode() -> None:
    weight, alpha = torch.randn(3, 4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    expected = torch.func.grad(lambda w: divergence.multiplicative_noise(w, alpha, 0.5))(weight)
    torch.testing.assert_close(
        torch.func.jacfwd(lambda w: divergence.multiplicative_noise(w, alpha, 0.5))(weight), expected
    )


def test_divergence_goes_through_vmap() -> None:
    weights, alphas = torch.randn(5, 4, 3), torch.rand(5, 3) + 0.1
    together = torch.vmap(lambda w, a: divergence.multiplicative_noise(w, a, 0.5))(weights, alphas)
    one_by_one = [divergence.multiplicative_noise(w, a, 0.5) for w, a in zip(weights, alphas, strict=True)]
    torch.testing.assert_close(together, torch.stack(one_by_one))
    gradient = torch.vmap(torch.func.grad(lambda w, a: divergence.multiplicative_noise(w, a, 0.5)))(weights, alphas)
    leaf = weights[2].clone().requires_grad_()
    divergence.multiplicative_noise(leaf, alphas[2], 0.5).backward()
    torch.testing.assert_close(gradient[2], leaf.grad)


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


def test_empirical_bayes_prior_variance_is_the_best_one() -> None:
    """KL + inverse-gamma penalty is minimal in the prior variance where EmpiricalBayes puts it."""
    mean, log_var = torch.randn(10, dtype=torch.float64), torch.randn(10, dtype=torch.float64)
    a, scale = 2.0, 0.3
    total, b = float((log_var.exp() + mean.square()).sum()), (1 + a) * scale
    best = (total + 2 * b) / (10 + 2 * a + 2)

    def penalised(prior: float) -> float:
        return float(divergence.mean_field(mean, log_var, prior)) + (a + 1) * math.log(prior) + b / prior

    assert penalised(best) < min(penalised(best * 1.01), penalised(best / 1.01))
    ours = float(divergence.empirical_bayes(mean, log_var, a, scale))
    assert ours == pytest.approx(float(divergence.mean_field(mean, log_var, best)), rel=1e-9)


def test_posteriors_start_where_they_say() -> None:
    assert mnvi.convert(nn.Linear(2, 2), mnvi.MultiplicativeNoise(1.0)).rho.tolist() == [-3.0, -3.0]
    assert mnvi.convert(nn.Linear(2, 1), mnvi.MeanField(1.0, init_log_var=-20.0)).log_var.tolist() == [[-20.0, -20.0]]
    assert mnvi.convert(nn.Linear(2, 2), mnvi.SharedMeanField(1.0)).log_var.tolist() == [-10.0, -10.0]


def test_posteriors_are_values() -> None:
    assert mnvi.MeanField(1.0) == mnvi.MeanField(1.0) != mnvi.MeanField(2.0)
    assert len({mnvi.MeanField(1.0), mnvi.MeanField(1.0), mnvi.SharedMeanField(1.0)}) == 2
    with pytest.raises(AttributeError):
        mnvi.MeanField(1.0).prior_variance = 2.0
