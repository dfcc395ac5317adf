"""tune_noise: uncertainty for a network that is already trained."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import mnvi
from mnvi.methods import noise_search

Data = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Data, Data]:
    """An overconfident classifier of digits, validation data, test data."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    net = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[:300]), y[:300]).backward()
        optimizer.step()
    return net, (x[300:700], y[300:700]), (x[700:], y[700:])


def scores(net: nn.Module, data: Data) -> tuple[float, float]:
    likelihood = mnvi.CategoricalLikelihood(generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        probs = likelihood.predictive(net.eval()(data[0])).probs
    return float(mnvi.metrics.nll(probs, data[1])), float(mnvi.metrics.ece(probs, data[1]))


def test_a_tuned_network_is_better_calibrated_on_data_it_has_not_seen(trained: tuple[nn.Module, Data, Data]) -> None:
    net, validation, test = trained
    tuned = mnvi.tune_noise(net, validation)
    (plain_nll, plain_ece), (nll, ece) = scores(net, test), scores(tuned, test)
    assert nll < plain_nll and ece < plain_ece


def test_it_is_no_worse_than_temperature_scaling_on_data_it_has_not_seen(
    trained: tuple[nn.Module, Data, Data],
) -> None:
    net, validation, test = trained
    tuned = mnvi.tune_noise(net, validation)
    alone = mnvi.methods.scale_temperature(net, validation)
    assert scores(tuned, test)[0] <= scores(alone, test)[0] + 0.005  # half a standard error of the difference


def test_weights_stay_as_they_are(trained: tuple[nn.Module, Data, Data]) -> None:
    net, validation, _ = trained
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tuned = mnvi.tune_noise(net, validation)
    after, inside = net.state_dict(), tuned.net.state_dict()
    assert all(torch.equal(after[name], value) and torch.equal(inside[name], value) for name, value in before.items())


def test_the_mean_of_the_logits_is_the_network_s_own_over_the_temperature(
    trained: tuple[nn.Module, Data, Data],
) -> None:
    net, validation, test = trained
    tuned = mnvi.tune_noise(net, validation)
    torch.testing.assert_close(tuned(test[0]).mean, net(test[0]) / tuned.tuning.temperature)


@pytest.mark.parametrize("layers", ["last", "4"])
def test_the_last_layer_is_found_by_calling_the_network(trained: tuple[nn.Module, Data, Data], layers: str) -> None:
    net, validation, _ = trained
    assert mnvi.tune_noise(net, validation, layers=layers).tuning.layers == ("4",)


def test_scaling_the_noise_gives_what_a_pass_with_that_noise_gives(trained: tuple[nn.Module, Data, Data]) -> None:
    net, (x, _), _ = trained
    one = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0), only="4").eval()
    outputs = noise_search.Outputs(one, mnvi.bayesian_layers(one), [x[:50], x[50:100]])
    assert outputs._unit is not None
    torch.testing.assert_close(outputs(-2.0).var, outputs._run(-2.0).var)


def test_noise_before_a_nonlinearity_is_not_scaled(trained: tuple[nn.Module, Data, Data]) -> None:
    net, (x, _), _ = trained
    first = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0), only="0").eval()
    assert noise_search.Outputs(first, mnvi.bayesian_layers(first), [x[:50]])._unit is None


def test_a_converted_network_keeps_its_noisy_layers(trained: tuple[nn.Module, Data, Data]) -> None:
    net, validation, _ = trained
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0), only=["2", "4"])
    tuned = mnvi.tune_noise(bayesian, [tuple(part.split(200)[i] for part in validation) for i in (0, 1)])
    assert tuned.tuning.layers == ("2", "4")
    assert bool((bayesian[4].rho == -3.0).all()), "the network given was changed"
    assert tuned.tuning.nll <= tuned.tuning.nll_temperature <= tuned.tuning.nll_before


def test_the_summary_says_what_was_chosen(trained: tuple[nn.Module, Data, Data]) -> None:
    net, validation, _ = trained
    assert str(mnvi.tune_noise(net, validation, temperature=False).tuning).startswith("noise rho = ")


def test_another_posterior_is_refused() -> None:
    field = mnvi.convert(nn.Linear(2, 3), mnvi.MeanField(1.0))
    with pytest.raises(TypeError, match="layers with MeanField"):
        mnvi.tune_noise(field, (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)))


def test_no_data_are_refused() -> None:
    with pytest.raises(ValueError, match="data are empty"):
        mnvi.tune_noise(nn.Linear(2, 3), [])


def test_the_elbo_learns_a_noise_for_each_unit_and_leaves_the_weights(trained: tuple[nn.Module, Data, Data]) -> None:
    net, validation, _ = trained
    tuned = mnvi.tune_noise(net, validation, learn="elbo", steps=50)
    (layer,) = mnvi.bayesian_layers(tuned)
    assert layer.rho.shape == (50,) and float(layer.rho.detach().std()) > 0.1
    inside = tuned.net.state_dict()
    assert all(torch.equal(inside[name], value) for name, value in net.state_dict().items())
    assert layer.posterior.prior_variance == pytest.approx(layer.weight.detach().square().mean().item())  # type: ignore[attr-defined]


def test_noise_learnt_by_the_elbo_calibrates_as_well_as_one_number(trained: tuple[nn.Module, Data, Data]) -> None:
    net, validation, test = trained
    learnt, scalar = mnvi.tune_noise(net, validation, learn="elbo", steps=200), mnvi.tune_noise(net, validation)
    assert scores(learnt, test)[0] <= scores(scalar, test)[0] + 0.01  # a standard error of the difference
    assert learnt.tuning.nll < learnt.tuning.nll_before and learnt.tuning.kept is not None and learnt.tuning.kept > 0.97


def test_the_prior_of_a_converted_network_is_kept(trained: tuple[nn.Module, Data, Data]) -> None:
    net, validation, _ = trained
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(0.25), only="4")
    (layer,) = mnvi.bayesian_layers(mnvi.tune_noise(bayesian, validation, learn="elbo", steps=2))
    assert layer.posterior == mnvi.MultiplicativeNoise(0.25)


def test_another_way_of_learning_is_refused() -> None:
    with pytest.raises(ValueError, match="learn='adam' must be 'scalar' or 'elbo'"):
        mnvi.tune_noise(nn.Linear(2, 3), (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)), learn="adam")


def test_a_pair_of_arrays_is_as_good_as_one_of_tensors() -> None:
    torch.manual_seed(0)
    net, x, y = torch.nn.Linear(3, 4), torch.randn(20, 3), torch.randint(4, (20,))
    expected = mnvi.tune_noise(net, (x, y)).tuning
    assert mnvi.tune_noise(net, (x.double().numpy(), y.numpy())).tuning == expected
    assert mnvi.tune_noise(net, [x, y]).tuning == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "tune_noise: data is a int; expected a pair"),
        (torch.zeros(2, 3), "tune_noise: data is a Tensor; expected a pair"),
        ([torch.zeros(2, 3)], "tune_noise: a batch of data has a Tensor; expected a pair"),
        ([(torch.zeros(2, 3), torch.zeros(2), torch.zeros(2))], "tune_noise: a batch of data has 3 parts; expected"),
    ],
)
def test_data_of_another_form_are_named(data: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        mnvi.tune_noise(torch.nn.Linear(3, 4), data)


def test_only_the_given_values_of_noise_are_tried(trained: tuple[nn.Module, Data, Data]) -> None:
    net, validation, _ = trained
    tuned = mnvi.tune_noise(net, validation, layers="all", rhos=(-6.0, -4.0))
    assert tuned.tuning.rho in (-6.0, -4.0, noise_search.NO_NOISE)
    with pytest.raises(ValueError, match=r"tune_noise: rhos=\(\) with learn='scalar'"):
        mnvi.tune_noise(net, validation, rhos=())


def test_predicted_numbers_stay_as_they_are() -> None:
    x = torch.randn(200, 3)
    y = x.sum(-1) + 2 * torch.randn(200)
    net = mnvi.models.mlp(3)
    before = net(x).detach()
    tuned = mnvi.tune_noise(net, (x, y))
    assert tuned.tuning.temperature == 1.0 and tuned.tuning.kept is None
    torch.testing.assert_close(tuned(x).mean, before)
    torch.testing.assert_close(mnvi.predict(tuned, x).mean, before[:, 0])


def test_a_network_far_too_sure_is_tuned_as_well_as_by_temperature_scaling() -> None:
    x = torch.randn(4000, 6)
    labels = torch.distributions.Categorical(logits=x[:, :3]).sample()
    net = nn.Linear(6, 3)
    with torch.no_grad():
        net.weight.copy_(8 * torch.eye(3, 6))
        net.bias.zero_()
    tuned = mnvi.tune_noise(net, (x[:2000], labels[:2000])).tuning
    tempered = mnvi.methods.scale_temperature(net, (x[:2000], labels[:2000]))
    assert float(tempered.temperature) == pytest.approx(8, rel=0.1)
    assert tuned.nll <= tuned.nll_temperature < tuned.nll_before
