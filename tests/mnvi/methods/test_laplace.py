"""Last-layer Laplace: against the posterior computed without factors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mnvi
from mnvi.methods.laplace import LaplaceLinear


def body() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def with_ones(net: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    features = net[:-1](x).detach()
    return torch.cat([features, torch.ones(len(features), 1, dtype=x.dtype)], 1)


def test_with_one_example_the_factors_are_exact() -> None:
    net, x = body(), torch.randn(1, 3, dtype=torch.float64)
    laplace = mnvi.methods.last_layer_laplace(net, (x, torch.tensor([1])), prior_precision=0.3)
    phi = with_ones(net, x)
    p = net(x).detach()[0].softmax(0)
    curvature = torch.kron(phi.T @ phi, torch.diag(p) - torch.outer(p, p))
    covariance = torch.linalg.inv(curvature + 0.3 * torch.eye(7 * 4, dtype=x.dtype))
    new = torch.randn(5, 3, dtype=torch.float64)
    jacobian = torch.stack([torch.kron(row[None], torch.eye(4, dtype=x.dtype)) for row in with_ones(net, new)])
    expected = torch.einsum("nci,ij,ncj->nc", jacobian, covariance, jacobian)
    out = laplace(new)
    torch.testing.assert_close(out.var, expected)
    torch.testing.assert_close(out.mean, net(new))


def test_for_numbers_it_is_bayesian_linear_regression() -> None:
    net, x = (
        nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double(),
        torch.randn(40, 3, dtype=torch.float64),
    )
    likelihood = mnvi.GaussianLikelihood(homoscedastic=True, init_log_noise=-1.0, outputs=1).double()
    laplace = mnvi.methods.last_layer_laplace(
        net, (x, torch.randn(40, 1, dtype=torch.float64)), prior_precision=2.0, likelihood=likelihood
    )
    phi = with_ones(net, x)
    precision = torch.exp(torch.tensor(1.0, dtype=torch.float64)) * phi.T @ phi + 2 * torch.eye(7, dtype=x.dtype)
    new = torch.randn(5, 3, dtype=torch.float64)
    expected = ((with_ones(net, new) @ torch.linalg.inv(precision)) * with_ones(net, new)).sum(1, keepdim=True)
    torch.testing.assert_close(laplace(new).var, expected)


def test_the_marginal_likelihood_has_the_determinant_of_the_whole_matrix() -> None:
    net, x = body(), torch.randn(20, 3, dtype=torch.float64)
    p = net(x).detach().softmax(1)
    curvature = torch.diag(p.mean(0)) - p.T @ p / 20
    layer = LaplaceLinear(net[2], net[:2](x), curvature)
    layer.precision.fill_(0.7)
    phi = with_ones(net, x)
    whole = torch.kron(phi.T @ phi, curvature) + 0.7 * torch.eye(28, dtype=x.dtype)
    norm = net[2].weight.square().sum() + net[2].bias.square().sum()
    expected = 0.5 * (28 * torch.log(torch.tensor(0.7)) - 0.7 * norm - torch.logdet(whole))
    assert layer.log_marginal_likelihood() == pytest.approx(expected.item())


def test_validation_data_choose_the_precision_with_the_lowest_nll() -> None:
    net, x, y = body(), torch.randn(80, 3, dtype=torch.float64), torch.randint(4, (80,))
    validation = (x[40:], y[40:])
    chosen = mnvi.methods.last_layer_laplace(net, (x[:40], y[:40]), validation=validation)
    best = mnvi.evaluate(chosen, validation)["nll"]
    for precision in (1e-3, 1.0, 1e3):
        other = mnvi.methods.last_layer_laplace(net, (x[:40], y[:40]), prior_precision=precision)
        assert best <= mnvi.evaluate(other, validation)["nll"] + 1e-9


def test_the_marginal_likelihood_chooses_if_asked_to() -> None:
    net, x, y = body(), torch.randn(80, 3, dtype=torch.float64), torch.randint(4, (80,))
    chosen = mnvi.methods.last_layer_laplace(net, (x, y), prior_precision="marginal")[2]
    best = chosen.log_marginal_likelihood()
    for factor in (0.3, 3.0):
        chosen.precision.mul_(factor)
        assert chosen.log_marginal_likelihood() < best
        chosen.precision.div_(factor)


def test_the_network_stays_and_a_single_layer_works() -> None:
    layer = nn.Linear(3, 4)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    laplace = mnvi.methods.last_layer_laplace(layer, (torch.randn(9, 3), torch.randint(4, (9,))), prior_precision=1.0)
    assert isinstance(laplace, LaplaceLinear) and type(layer) is nn.Linear
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("net", "settings", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(1)), {"prior_precision": 1.0}, "not that of its last layer"),
        (nn.Sequential(nn.Flatten(), nn.Identity()), {"prior_precision": 1.0}, "no linear or convolution layer"),
        (nn.Linear(3, 4), {}, "give either validation"),
        (nn.Linear(3, 4), {"prior_precision": -1.0}, "prior_precision=-1.0"),
    ],
)
def test_what_cannot_be_done_is_refused(net: nn.Module, settings: dict[str, float], message: str) -> None:
    data = torch.randn(9, 3), torch.randint(4, (9,))
    with pytest.raises(ValueError, match=message):
        mnvi.methods.last_layer_laplace(net, data, **settings)  # type: ignore[arg-type]


def test_a_last_convolution_and_other_likelihoods_are_refused() -> None:
    with pytest.raises(TypeError, match="is a Conv1d; expected a"):
        mnvi.methods.last_layer_laplace(
            nn.Conv1d(3, 4, 1), (torch.randn(2, 3, 5), torch.zeros(2, dtype=torch.long)), prior_precision=1.0
        )
    with pytest.raises(TypeError, match="likelihood is a PoissonLikelihood"):
        mnvi.methods.last_layer_laplace(
            nn.Linear(3, 1),
            (torch.randn(9, 3), torch.zeros(9, 1)),
            prior_precision=1.0,
            likelihood=mnvi.PoissonLikelihood(),
        )
