"""The tempered ELBO: its terms, its schedule, its gradient, and a whole compiled training step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import mnvi
from mnvi.moments._torch import compiler_options


def setting() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    return mnvi.convert(net, mnvi.MultiplicativeNoise(0.1)), torch.randn(6, 4).double(), torch.randint(3, (6,))


LIKELIHOOD = mnvi.CategoricalLikelihood(approximation="second_order")


def test_loss_is_nll_plus_scaled_divergence() -> None:
    net, x, y = setting()
    out, kl = net(x), mnvi.kl_divergence(net)
    terms = mnvi.ELBO(LIKELIHOOD, num_data=120, kappa=0.3)(out, y, kl)
    torch.testing.assert_close(terms.nll, -LIKELIHOOD.expected_log_prob(out, y).mean())
    torch.testing.assert_close(terms.loss, terms.nll + 0.3 / 120 * kl)
    assert terms.kl is kl and isinstance(terms, mnvi.Terms)


def test_kappa_of_one_is_the_default_and_zero_leaves_the_likelihood() -> None:
    net, x, y = setting()
    out, kl = net(x), mnvi.kl_divergence(net)
    terms = mnvi.ELBO(LIKELIHOOD, num_data=10)(out, y, kl)
    torch.testing.assert_close(terms.loss, terms.nll + kl / 10)
    cold = mnvi.ELBO(LIKELIHOOD, num_data=10, kappa=0)(out, y, kl)
    torch.testing.assert_close(cold.loss, cold.nll)


def test_sum_over_data_is_the_negative_evidence_lower_bound() -> None:
    net, x, y = setting()
    terms = mnvi.ELBO(LIKELIHOOD, num_data=len(x))(net(x), y, mnvi.kl_divergence(net))
    bound = LIKELIHOOD.expected_log_prob(net(x), y).sum() - mnvi.kl_divergence(net)
    torch.testing.assert_close(terms.loss * len(x), -bound)


def test_network_without_posterior_has_no_divergence() -> None:
    out = torch.randn(6, 3).double()
    terms = mnvi.ELBO(LIKELIHOOD, num_data=10)(out, torch.zeros(6, dtype=torch.long), kl=0)
    assert terms.kl == 0 and terms.kl.dtype == torch.float64
    torch.testing.assert_close(terms.loss, terms.nll)


def test_gradient_is_that_of_the_two_terms() -> None:
    net, x, y = setting()
    elbo = mnvi.ELBO(LIKELIHOOD, num_data=120, kappa=0.3)
    parameters = list(net.parameters())
    together = torch.autograd.grad(elbo(net(x), y, mnvi.kl_divergence(net)).loss, parameters)
    nll = torch.autograd.grad(elbo(net(x), y, kl=0).loss, parameters)
    kl = torch.autograd.grad(mnvi.kl_divergence(net), parameters, allow_unused=True)
    for whole, first, second in zip(together, nll, kl, strict=True):
        torch.testing.assert_close(whole, first if second is None else first + 0.3 / 120 * second)


def test_gradient_flows_to_the_learnt_noise() -> None:
    like = mnvi.GaussianLikelihood(homoscedastic=True)
    out = mnvi.Gaussian(torch.zeros(5), torch.ones(5))
    mnvi.ELBO(like, num_data=5)(out, torch.full((5,), 3.0), kl=0).loss.backward()
    # ∂/∂c of ½(c + e^−c·(v + (μ−y)²)) at c = 0
    torch.testing.assert_close(like.log_noise.grad, torch.tensor(0.5 * (1 - 10.0)))


def test_learnt_noise_finds_the_noise_of_the_data() -> None:
    like = mnvi.GaussianLikelihood(homoscedastic=True)
    y = 0.3 * torch.randn(4000)
    out = mnvi.Gaussian(torch.zeros(4000), torch.zeros(4000))
    optimizer = torch.optim.LBFGS(like.parameters(), max_iter=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mnvi.ELBO(like, num_data=4000)(out, y, kl=0).loss
        loss.backward()
        return loss

    optimizer.step(closure)
    assert like.log_noise.exp().item() == pytest.approx(y.square().mean().item(), rel=1e-3)


def test_schedule_of_the_paper() -> None:
    schedule = mnvi.StepSchedule({0: 0.01, 100: 0.1, 150: 1.0})
    assert [schedule(epoch) for epoch in (0, 99, 100, 149, 150, 10_000)] == [0.01, 0.01, 0.1, 0.1, 1.0, 1.0]
    assert mnvi.StepSchedule({100: 2.0, 0: 1.0})(100) == 2.0


@pytest.mark.parametrize("kappa", [mnvi.StepSchedule({0: 0.5, 3: 2.0}), lambda epoch: 0.5 if epoch < 3 else 2.0])
def test_kappa_follows_the_epoch(kappa: object) -> None:
    net, x, y = setting()
    elbo = mnvi.ELBO(LIKELIHOOD, num_data=10, kappa=kappa)
    out, kl = net(x), mnvi.kl_divergence(net)
    for epoch, value in ((0, 0.5), (2, 0.5), (3, 2.0)):
        terms = elbo(out, y, kl, epoch=epoch)
        torch.testing.assert_close(terms.loss, terms.nll + value / 10 * kl)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("posterior", "backend"),
    [(mnvi.MultiplicativeNoise(0.1), "inductor"), (mnvi.MeanField(0.1), "aot_eager")],
    ids=["noise", "field, traced only"],
)
def test_training_step_with_sampled_likelihood_compiles_as_one_graph(posterior: mnvi.Posterior, backend: str) -> None:
    net = mnvi.convert(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), posterior)
    other = copy.deepcopy(net)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(num_samples=20_000), num_data=100, kappa=mnvi.StepSchedule({0: 0.5}))

    def loss(model: nn.Module) -> torch.Tensor:
        return elbo(model(x), y, mnvi.kl_divergence(model), epoch=0).loss

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    value, expected = compiled(net), loss(other)
    value.backward()
    expected.backward()
    # the compiler draws other random numbers: with 20,000 logit samples both are within a percent of the expectation
    torch.testing.assert_close(value, expected, rtol=0.01, atol=0.01)
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.05, atol=0.01)


@pytest.mark.slow
def test_compiled_training_lowers_the_loss() -> None:
    net = mnvi.convert(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), mnvi.MultiplicativeNoise(0.1))
    x = torch.randn(60, 4)
    y = x[:, :3].argmax(-1)
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=60, kappa=0.01)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss() -> torch.Tensor:
        return elbo(net(x), y, mnvi.kl_divergence(net)).loss

    values = []
    for _ in range(60):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert sum(values[-5:]) < 0.5 * sum(values[:5])


def test_the_kl_by_layer_is_the_sum_of_the_layers_to_the_last_bit() -> None:
    net = mnvi.convert(mnvi.models.lenet(), mnvi.MultiplicativeNoise(prior_variance=0.1))
    expected = torch.stack([layer.kl_divergence() for layer in mnvi.bayesian_layers(net)]).sum()
    with mnvi.options(kl="by_layer"):
        assert torch.equal(mnvi.kl_divergence(net), expected)
    torch.testing.assert_close(mnvi.kl_divergence(net), expected)


def test_a_compiled_objective_may_join_products_and_sums_unless_told_how_to_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, object]] = []

    def note(call: object, **how: object) -> object:
        seen.append(how)
        return call

    monkeypatch.setattr(torch, "compile", note)
    objective = mnvi.Objective(setting()[0], mnvi.ELBO(LIKELIHOOD, num_data=10))
    objective.compile(dynamic=False)
    objective.compile(backend="eager")
    assert seen == [{"dynamic": False, "options": compiler_options()}, {"backend": "eager"}]


def test_the_compiler_knows_its_options() -> None:
    options = compiler_options()
    assert options == {"cpp.enable_floating_point_contract_flag": "fast"}
    torch.compile(nn.Identity(), options=options)  # raises for an option that the compiler lacks
