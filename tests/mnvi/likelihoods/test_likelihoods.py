"""Training with every likelihood: as one compiled graph, and as replicas."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import mnvi

CASES: dict[str, tuple[mnvi.Likelihood, int, Tensor]] = {  # likelihood, features of the output, targets
    "gaussian": (mnvi.GaussianLikelihood(), 2, torch.linspace(-2, 2, 6)),
    "several outputs": (mnvi.GaussianLikelihood(outputs=2), 4, torch.linspace(-2, 2, 12).view(6, 2)),
    "homoscedastic": (mnvi.GaussianLikelihood(homoscedastic=True), 2, torch.linspace(-2, 2, 12).view(6, 2)),
    "categorical": (
        mnvi.CategoricalLikelihood(
            approximation="second_order", class_weights=[1.0, 2.0, 3.0], label_smoothing=0.1, ignore_index=-1
        ),
        3,
        torch.tensor([0, 1, 2, -1, 1, 0]),
    ),
    "bernoulli": (mnvi.BernoulliLikelihood(), 3, torch.tensor([[0.0, 1.0, 1.0]] * 6)),
    "poisson": (mnvi.PoissonLikelihood(), 2, torch.arange(12.0).view(6, 2)),
    "student t": (mnvi.StudentTLikelihood(), 2, torch.linspace(-2, 2, 6)),
    "student t, learnt": (mnvi.StudentTLikelihood(learn_df=True), 2, torch.linspace(-2, 2, 6)),
}
every_case = pytest.mark.parametrize("name", CASES)


def network(features: int) -> nn.Module:
    return mnvi.convert(mnvi.models.mlp(3, hidden=8, out_features=features), mnvi.MultiplicativeNoise(1.0))


@every_case
@pytest.mark.slow
def test_a_training_step_compiles_as_one_graph(name: str) -> None:
    like, features, y = copy.deepcopy(CASES[name])
    net, x = network(features), torch.randn(6, 3)
    elbo = mnvi.ELBO(like, num_data=100)
    parameters = [*net.parameters(), *like.parameters()]

    def loss() -> Tensor:
        return elbo(net(x), y, mnvi.kl_divergence(net)).loss

    value = torch.compile(loss, fullgraph=True, backend="aot_eager")()
    torch.testing.assert_close(value, loss(), rtol=1e-5, atol=1e-5)
    compiled = torch.autograd.grad(value, parameters)
    for gradient, expected in zip(compiled, torch.autograd.grad(loss(), parameters), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@every_case
def test_replicas_are_trained_as_each_alone(name: str) -> None:
    like, features, y = CASES[name]

    def build(k: int) -> mnvi.Objective:
        return mnvi.Objective(network(features), mnvi.ELBO(copy.deepcopy(like), num_data=6))

    data = [(torch.randn(6, 3), y)] * 3
    recipe = mnvi.replicas.Recipe(epochs=2, batch_size=6, learning_rate=0.01)
    together = mnvi.replicas.train(build, data, range(3), recipe)
    alone = mnvi.replicas.train(build, data[:1], [2], recipe)
    assert not together.failures
    for tensor, value in alone.state.items():
        torch.testing.assert_close(together.state[tensor][2], value[0])


class Inherited(mnvi.GaussianLikelihood):
    """What a likelihood of a user's own gets from the base class."""

    standard_deviations = mnvi.Likelihood.standard_deviations
    uncertainty = mnvi.Likelihood.uncertainty


def test_inherited_standard_deviations_are_the_closed_ones_up_to_sampling() -> None:
    out = mnvi.Gaussian(torch.randn(1, 2), torch.full((1, 2), 0.3)).map(lambda t: t.expand(4000, 2))
    exact = mnvi.GaussianLikelihood().standard_deviations(out)
    for part, expected in zip(Inherited().standard_deviations(out), exact, strict=True):
        squares = part.square()  # each from 64 samples, which lowers the epistemic variance by 1/64
        error = 5 * squares.std() / len(squares) ** 0.5 + expected[0].square() / 64
        assert abs(squares.mean() - expected[0].square()) < error


def test_inherited_parts_add_up_for_samples_and_known_outputs() -> None:
    values = torch.randn(9, 5, 2)
    total, aleatoric, epistemic = Inherited().standard_deviations(mnvi.Samples(values))
    torch.testing.assert_close(total.square(), aleatoric.square() + epistemic.square())
    torch.testing.assert_close(epistemic, values[..., 0].std(0, correction=0))
    known = Inherited().standard_deviations(values[0])
    assert torch.equal(known.total, known.aleatoric) and not known.epistemic.any()
    assert not Inherited().uncertainty(values[0]).epistemic.any()
