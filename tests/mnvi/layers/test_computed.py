"""Layers whose weight is computed: weight norm, spectral norm, and parametrisations of a user's own."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import mnvi

POSTERIORS = [mnvi.MultiplicativeNoise(0.3), mnvi.MeanField(0.3, -2.0), mnvi.SharedMeanField(0.3, -2.0)]
WITH_EACH = pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def with_doubled(layer: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", Doubled())


def with_old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        return nn.utils.weight_norm(layer)


KINDS: dict[str, Callable[[Any], Any]] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "own": with_doubled,
    "old weight norm": with_old_weight_norm,
}
EACH = pytest.mark.parametrize("kind", list(KINDS))


def network(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [
        KINDS[kind](nn.Conv2d(2, 3, 3)),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        KINDS[kind](nn.Linear(12, 2)),
    ]
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith(("original0", "weight_g")):
                parameter.mul_(1.7)
    net(torch.randn(8, 2, 4, 4))
    return net.eval()


X = torch.linspace(-1, 1, 64).view(2, 2, 4, 4)


@EACH
@WITH_EACH
def test_moments_are_those_of_the_layer_with_the_computed_weight(kind: str, posterior: mnvi.Posterior) -> None:
    net = network(kind)
    plain = copy.deepcopy(network("weight norm"))
    for i in (0, 4):
        parametrize.remove_parametrizations(plain[i], "weight")
        plain[i].weight = nn.Parameter(net[i].weight.detach().clone())
        plain[i].bias = net[i].bias
    plain[1] = net[1]
    bayesian = mnvi.convert(net, posterior)
    ours, reference = bayesian(X), mnvi.convert(plain, posterior)(X)
    torch.testing.assert_close(ours.mean, reference.mean)
    torch.testing.assert_close(ours.var, reference.var)
    torch.testing.assert_close(bayesian[0](X).mean, net[0](X))


@EACH
def test_gradients_reach_what_the_weight_is_computed_from(kind: str) -> None:
    bayesian = mnvi.convert(network(kind), POSTERIORS[0]).train()
    out = bayesian(X)
    (out.mean.square().sum() + out.var.sum()).backward()
    by_output = {name: p.grad.clone() for name, p in bayesian.named_parameters()}
    assert all(grad.abs().max() > 0 for name, grad in by_output.items() if name != "0.bias")  # the norm removes it
    bayesian.zero_grad()
    mnvi.kl_divergence(bayesian).backward()
    through_kl = [p.grad for name, p in bayesian.named_parameters() if "original" in name]
    assert through_kl and all(grad is not None for grad in through_kl)


def test_gradcheck_through_weight_norm() -> None:
    layer = mnvi.convert(parametrizations.weight_norm(nn.Linear(3, 2)), POSTERIORS[0]).double()
    names, values = zip(*layer.named_parameters(), strict=True)
    x = mnvi.Gaussian(torch.randn(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64))

    def moments(*parameters: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return out.mean, out.var

    assert torch.autograd.gradcheck(moments, [v.detach().requires_grad_() for v in values])


def test_the_weight_is_computed_once_in_a_pass_and_anew_in_the_next() -> None:
    layer = mnvi.convert(with_doubled(nn.Linear(3, 2)), POSTERIORS[0])
    calls = []
    layer.parametrizations.weight[0].register_forward_hook(lambda *_: calls.append(1))
    before = layer(torch.ones(1, 3)).mean
    assert len(calls) == 1
    with torch.no_grad():
        layer.parametrizations.weight.original.add_(1.0)
    torch.testing.assert_close(layer(torch.ones(1, 3)).mean, before + 6.0)


def test_a_failed_pass_leaves_no_weight_behind() -> None:
    layer = mnvi.convert(with_doubled(nn.Linear(3, 2)), POSTERIORS[0])
    with pytest.raises(ValueError, match="expected 3 input units"):
        layer(torch.ones(1, 4))
    with torch.no_grad():
        layer.parametrizations.weight.original.fill_(1.0)
    assert layer.weight.max() == 2.0


@EACH
def test_state_dict_copy_and_pickle(kind: str) -> None:
    bayesian = mnvi.convert(network(kind), POSTERIORS[0])
    out = bayesian(X)
    fresh = mnvi.convert(network(kind), POSTERIORS[0])
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(0.1)
    fresh.load_state_dict(bayesian.state_dict())
    others = [fresh, copy.deepcopy(bayesian)]
    if "weight norm" not in kind:  # torch's weight norm holds a function that cannot be pickled
        others.append(pickle.loads(pickle.dumps(bayesian)))
    for other in others:
        torch.testing.assert_close(other(X).mean, out.mean)
        torch.testing.assert_close(other(X).var, out.var)


@WITH_EACH
@EACH
def test_optimising_stores_the_weight_and_folds_norms_into_it(kind: str, posterior: mnvi.Posterior) -> None:
    bayesian = mnvi.convert(network(kind), posterior)
    fast = mnvi.optimize_for_inference(bayesian, compile=False)
    assert type(fast[0]) is mnvi.layers.Conv2d and type(fast[1]).__name__ == "FoldedBatchNorm"
    assert not any("parametrizations" in name for name in fast.state_dict())
    torch.testing.assert_close(fast(X).mean, bayesian(X).mean)
    torch.testing.assert_close(fast(X).var, bayesian(X).var)


@EACH
def test_export_and_compile(kind: str) -> None:
    bayesian = mnvi.convert(network(kind), POSTERIORS[0])
    expected = bayesian(X)
    exported = torch.export.export(bayesian, (X,)).module()(X)
    compiled = torch.compile(bayesian, backend="eager", fullgraph=True)(X)
    for out in (exported, compiled):
        torch.testing.assert_close(out.mean, expected.mean)
        torch.testing.assert_close(out.var, expected.var)


def test_removing_the_parametrisation_leaves_a_layer_with_a_posterior() -> None:
    layer = mnvi.convert(parametrizations.weight_norm(nn.Linear(3, 2)), POSTERIORS[0])
    other = copy.deepcopy(layer)
    out = layer(torch.ones(1, 3))
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is mnvi.layers.Linear
    for one in (layer, other):
        torch.testing.assert_close(one(torch.ones(1, 3)).var, out.var)


def test_old_checkpoints_of_weight_norm_load() -> None:
    net = network("old weight norm")
    bayesian = mnvi.convert(network("weight norm"), POSTERIORS[0])
    assert "0.weight_g" in net.state_dict()
    bayesian.load_state_dict(net.state_dict(), strict=False)
    torch.testing.assert_close(bayesian[0](X).mean, net[0](X))


def test_the_given_model_keeps_its_hook() -> None:
    net = network("old weight norm")
    mnvi.convert(net, POSTERIORS[0])
    assert "0.weight_g" in net.state_dict()
    with torch.no_grad():
        net[0].weight_g.mul_(0.0)
    net[0](X)
    assert net[0].weight.abs().max() == 0


def test_the_summary_counts_what_a_weight_is_computed_from() -> None:
    table = mnvi.summary(mnvi.convert(network("weight norm"), POSTERIORS[0]))
    assert [row.name for row in table] == ["0", "1", "4"]
    assert (table["4"].parameters, table["4"].noise, table["4"].bayesian) == (24 + 2 + 2 + 12, 12, True)


def test_other_parametrisations_than_of_the_weight_are_refused() -> None:
    layer = parametrize.register_parametrization(nn.Linear(3, 2), "bias", Doubled())
    with pytest.raises(ValueError, match=r"is parametrised in bias.*remove_parametrizations"):
        mnvi.convert(layer, POSTERIORS[0])
