"""A posterior for the last layer alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mnvi


def trained() -> tuple[nn.Module, Tensor, Tensor]:
    x = torch.randn(120, 3)
    y = (x[:, 0] + 0.7 * torch.randn(120) > 0).long()
    net = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 2))
    mnvi.fit(net, (x, y), epochs=30, progress=False)
    return net, x, y


@pytest.mark.parametrize("posterior", [None, mnvi.MultiplicativeNoise(1.0)])
def test_only_the_last_layer_has_a_posterior_and_only_it_changes(posterior: mnvi.Posterior | None) -> None:
    net, x, y = trained()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = mnvi.methods.variational_last_layer(net, (x, y), posterior=posterior, steps=20)
    assert [type(layer) for layer in mnvi.bayesian_layers(found)] == [mnvi.layers.Linear]
    assert torch.equal(found.state_dict()["0.weight"], before["0.weight"])
    assert not torch.equal(found.state_dict()["2.weight"], before["2.weight"])
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


def test_the_bound_is_that_of_the_whole_network_and_rises() -> None:
    net, x, y = trained()
    likelihood = mnvi.CategoricalLikelihood(approximation="second_order")
    elbo = mnvi.ELBO(likelihood, len(y))

    def loss(steps: int) -> float:
        found = mnvi.methods.variational_last_layer(net, (x, y), likelihood=likelihood, steps=steps, learning_rate=0.05)
        return elbo(found(x), y, mnvi.kl_divergence(found)).loss.item()

    assert loss(200) < loss(1) - 0.1


def test_predictions_need_no_likelihood_and_know_what_they_do_not_know() -> None:
    net, x, y = trained()
    found = mnvi.methods.variational_last_layer(net, (x, y), steps=200, learning_rate=0.05)
    near, far = (mnvi.predict(found, scale * torch.randn(50, 3)).epistemic.mean() for scale in (0.1, 10.0))
    assert mnvi.predict(found, x).probs is not None
    assert float(near) >= 0 and float(far) > 0
