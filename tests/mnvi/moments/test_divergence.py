"""KL divergences from a posterior to its prior: values, gradients, transforms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from mnvi.moments import divergence


def test_mean_field_divergence_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_var = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    zero, sigma = torch.zeros(6, dtype=torch.float64), math.sqrt(0.3)
    expected = kl_divergence(Normal(mean, (0.5 * log_var).exp()), Normal(zero, sigma)).sum()
    torch.testing.assert_close(divergence.mean_field(mean, log_var, 0.3), expected)


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


def test_divergence_has_right_second_derivatives() -> None:
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    alpha = (torch.rand(2, dtype=torch.float64) + 0.1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda w, a: divergence.multiplicative_noise(w, a, 0.5), (weight, alpha))


def _of_layers(*tensors: torch.Tensor) -> torch.Tensor:
    half = len(tensors) // 2
    return divergence.multiplicative_noise_of_layers(list(tensors[:half]), list(tensors[half:]), 0.5)


def _layers() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    weights = [
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (1, 2, 3, 2), (2, 2))
    ]
    alphas = [
        torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.1 for shape in ((2,), (1, 1, 3, 1), (2,))
    ]
    return [t.requires_grad_() for t in (*weights, *alphas)]


@pytest.mark.parametrize("together", [1, 7, 1 << 22], ids=["one by one", "two and one", "all"])
def test_divergence_of_several_layers_is_the_sum_to_every_order(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "_TOGETHER", together)
    tensors = _layers()
    expected = sum(divergence.multiplicative_noise(tensors[i], tensors[3 + i], 0.5) for i in range(3))
    torch.testing.assert_close(_of_layers(*tensors), expected)
    assert torch.autograd.gradcheck(_of_layers, tensors)
    assert torch.autograd.gradgradcheck(_of_layers, tensors)


def test_gradients_of_several_layers_are_those_of_each_to_the_last_bit() -> None:
    tensors = [t.detach().float().requires_grad_() for t in _layers()]
    each = [
        torch.autograd.grad(
            divergence.multiplicative_noise(tensors[i], tensors[3 + i], 0.5), (tensors[i], tensors[3 + i])
        )
        for i in range(3)
    ]
    together = torch.autograd.grad(_of_layers(*tensors), tensors)
    for i in range(3):
        assert torch.equal(together[i], each[i][0]) and torch.equal(together[3 + i], each[i][1])


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
