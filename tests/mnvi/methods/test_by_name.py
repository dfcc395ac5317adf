"""Every method through one loop: trained on one loss, predicting a distribution, alone or many at once."""

import pytest
import torch
from torch import nn
from torch.distributions import Distribution
from torch.func import functional_call, grad, vmap

import mnvi
from mnvi import methods
from mnvi.models import mlp

SETTINGS = {"ensemble": {"num_members": 3}, "dvi": {"init_log_var": -6.0}, "ddvi": {"init_log_var": -6.0}}
every_method = pytest.mark.parametrize("name", methods.NAMES)


def build(name, in_features, hidden=20, out_features=2):
    dropout = 0.05 if name == "mc_dropout" else 0.0
    return methods.build(name, lambda: mlp(in_features, hidden, out_features, dropout), **SETTINGS.get(name, {}))


def regression(count, seed):
    """y = sin 3x plus noise whose scale grows with x."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(count, 1, generator=generator) - 1
    noise = (0.05 + 0.15 * (x[:, 0] > 0)) * torch.randn(count, generator=generator)
    return x, torch.sin(3 * x[:, 0]) + noise


def classification(count, seed):
    """Three classes by angle, one label in ten at random."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    labels = (3 * (torch.atan2(x[:, 1], x[:, 0]) / (2 * torch.pi) + 0.5)).long().clamp(max=2)
    random = torch.randint(3, (count,), generator=generator)
    return x, torch.where(torch.rand(count, generator=generator) < 0.1, random, labels)


def train(net, elbo, x, y, steps):
    """The loop that every method shares."""
    objective = mnvi.Objective(net, elbo).train()
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(x, y).loss.backward()
        optimizer.step()


def log_likelihood(net, likelihood, x, y):
    with torch.no_grad():
        prediction = likelihood.predictive(net.eval()(x))
    assert isinstance(prediction, Distribution)
    return prediction.log_prob(y).mean().item()


@every_method
def test_regression_is_learnt(name):
    (x, y), (x_test, y_test) = regression(200, 1), regression(200, 2)
    torch.manual_seed(0)
    net, likelihood = build(name, 1), mnvi.GaussianLikelihood()
    untrained = log_likelihood(net, likelihood, x_test, y_test)
    train(net, mnvi.ELBO(likelihood, num_data=200, kappa=0.01), x, y, steps=300)
    trained = log_likelihood(net, likelihood, x_test, y_test)
    constant = torch.distributions.Normal(y.mean(), y.std()).log_prob(y_test).mean().item()
    assert trained > untrained + 0.5
    assert trained > constant + 0.5


@every_method
def test_classification_is_learnt(name):
    (x, y), (x_test, y_test) = classification(300, 1), classification(300, 2)
    torch.manual_seed(0)
    net = build(name, 2, out_features=3)
    likelihood = mnvi.CategoricalLikelihood(num_samples=16, generator=torch.Generator().manual_seed(0))
    untrained = log_likelihood(net, likelihood, x_test, y_test)
    train(net, mnvi.ELBO(likelihood, num_data=300, kappa=0.01), x, y, steps=200)
    trained = log_likelihood(net, likelihood, x_test, y_test)
    constant = torch.distributions.Categorical(y.bincount() / len(y)).log_prob(y_test).mean().item()
    assert trained > untrained + 0.3
    assert trained > constant + 0.3


def stacked_parameters(objectives):
    states = [dict(objective.named_parameters()) for objective in objectives]
    return {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}


def gradients_of_many(name, likelihood, x, y, out_features=2):
    """Gradients of one replica per data set by vmap of grad, and the replicas."""
    elbo = mnvi.ELBO(likelihood, num_data=10)
    objectives = [mnvi.Objective(build(name, 3, 6, out_features), elbo) for _ in x]

    def loss(parameters, x, y):
        return functional_call(objectives[0], parameters, (x, y)).loss

    return objectives, vmap(grad(loss), randomness="different")(stacked_parameters(objectives), x, y)


@pytest.mark.parametrize("name", [n for n in methods.NAMES if n not in ("mc_mfvi", "mc_dropout")])
def test_replicas_under_vmap_have_the_gradients_they_have_alone(name):
    x, y = torch.randn(3, 10, 3), torch.randn(3, 10)
    objectives, gradients = gradients_of_many(name, mnvi.GaussianLikelihood(), x, y)
    for k, objective in enumerate(objectives):
        objective(x[k], y[k]).loss.backward()
        for parameter_name, parameter in objective.named_parameters():
            torch.testing.assert_close(gradients[parameter_name][k], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mc_mfvi", "mc_dropout"])
def test_random_replicas_under_vmap_draw_noise_of_their_own(name):
    x, y = torch.randn(10, 3).expand(3, 10, 3), torch.randn(10).expand(3, 10)
    objective = mnvi.Objective(build(name, 3, 20), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10))
    same = {k: p.detach().expand(3, *p.shape) for k, p in objective.named_parameters()}

    def loss(parameters, x, y):
        return functional_call(objective, parameters, (x, y)).loss

    gradients = vmap(grad(loss), randomness="different")(same, x, y)["net.net.output.weight"]
    assert gradients.isfinite().all() and gradients.unique(dim=0).shape[0] == 3


@every_method
def test_classification_replicas_run_under_vmap(name):
    x, y = torch.randn(3, 10, 3), torch.randint(4, (3, 10))
    _, gradients = gradients_of_many(name, mnvi.CategoricalLikelihood(num_samples=4), x, y, out_features=4)
    assert all(g.isfinite().all() for g in gradients.values())


def test_objective_adds_the_kl_where_there_is_one():
    x, y = torch.randn(5, 3), torch.randn(5)
    elbo = mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10, kappa={0: 0.1, 5: 1.0}.get)
    net = build("mnvi", 3)
    terms = mnvi.Objective(net, elbo)(x, y, epoch=5)
    torch.testing.assert_close(terms.kl, mnvi.kl_divergence(net))
    torch.testing.assert_close(terms.loss, terms.nll + terms.kl / 10)
    assert mnvi.Objective(build("deterministic", 3), elbo)(x, y, epoch=0).kl == 0


def test_objective_owns_the_parameters_of_the_likelihood():
    elbo = mnvi.ELBO(mnvi.GaussianLikelihood(homoscedastic=True), num_data=10)
    assert "likelihood.log_noise" in dict(mnvi.Objective(mlp(3, out_features=1), elbo).named_parameters())


def test_objective_differs_with_the_parameters_that_functional_call_gives():
    net = build("mfvi", 3)
    objective = mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10))
    doubled = {name: 2 * parameter for name, parameter in objective.named_parameters()}
    terms = functional_call(objective, doubled, (torch.randn(5, 3), torch.randn(5)))
    assert not torch.isclose(terms.kl, mnvi.kl_divergence(net))


@every_method
def test_a_given_network_is_copied_and_its_weights_kept(name):
    network = mlp(3, dropout=0.1)
    if name == "ensemble":
        with pytest.raises(TypeError, match="needs a function"):
            methods.build(name, network)
        return
    net = methods.build(name, network)
    weights = [m.weight for m in net.modules() if isinstance(m, nn.Linear)]
    assert torch.equal(weights[0], network.hidden1.weight) and weights[0] is not network.hidden1.weight
    assert network.training and type(network.hidden1) is nn.Linear


def test_hyperparameters_reach_the_method():
    assert methods.build("mnvi", mlp(3), prior_variance=0.5).output.posterior.prior_variance == 0.5
    assert methods.build("mc_mfvi", mlp(3), prior_variance=0.5, num_samples=3).num_samples == 3
    assert methods.build("mc_dropout", mlp(3, dropout=0.1), chunk=2).chunk == 2
    assert methods.build("ddvi", mlp(3), init_log_var=-7.0).output.log_var.eq(-7).all()
    assert len(methods.build("ensemble", lambda: mlp(3), num_members=2).members) == 2


def test_unknown_methods_and_hyperparameters_are_named():
    with pytest.raises(ValueError, match="name='laplace' is not one of deterministic, mnvi"):
        methods.build("laplace", mlp(3))
    with pytest.raises(TypeError, match="mnvi has no hyperparameter 'prior_var'; it has: prior_variance, init_rho"):
        methods.build("mnvi", mlp(3), prior_var=1.0)
    with pytest.raises(
        TypeError, match="mc_mfvi has no hyperparameter 'samples'; it has: prior_variance, init_log_var"
    ):
        methods.build("mc_mfvi", mlp(3), samples=3)
