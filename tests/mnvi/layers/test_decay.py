"""Weight decay shrinks weights, not noise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mnvi

POSTERIORS = [mnvi.MultiplicativeNoise(1.0), mnvi.MeanField(1.0), mnvi.SharedMeanField(1.0)]


def network(posterior: mnvi.Posterior) -> nn.Module:
    return mnvi.convert(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)), posterior
    )


@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)
def test_weights_decay_and_everything_else_does_not(posterior: mnvi.Posterior) -> None:
    net = network(posterior)
    decayed, left = mnvi.parameter_groups(net, weight_decay=0.1)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {"0.weight", "4.weight"}
    assert len(decayed["params"]) + len(left["params"]) == len(names)
    assert (decayed["weight_decay"], left["weight_decay"]) == (0.1, 0.0)


def test_decay_leaves_the_noise_where_it_is() -> None:
    net = network(POSTERIORS[0])
    before, weight = net[0].rho.clone(), net[0].weight.clone()
    optimizer = torch.optim.AdamW(mnvi.parameter_groups(net, weight_decay=0.5), lr=0.1)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(net[0].rho, before)
    assert (net[0].weight.abs() < weight.abs()).all()


def test_frozen_and_tied_parameters() -> None:
    net = mnvi.convert(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), POSTERIORS[0])
    net[0].weight.requires_grad_(False)
    net[1].bias = net[0].bias
    groups = mnvi.parameter_groups(net, weight_decay=0.1)
    assert [len(group["params"]) for group in groups] == [1, 3]


def test_deterministic_networks_and_objectives_work_too() -> None:
    assert len(mnvi.parameter_groups(nn.Linear(2, 2, bias=False), 0.1)) == 1
    objective = mnvi.Objective(network(POSTERIORS[0]), mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=10))
    assert len(mnvi.parameter_groups(objective, 0.1)[0]["params"]) == 2


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="parameter_groups: weight_decay=-1"):
        mnvi.parameter_groups(nn.Linear(1, 1), -1)
    with pytest.raises(TypeError, match="parameter_groups: model must be a"):
        mnvi.parameter_groups([], 0.1)  # type: ignore[arg-type]
