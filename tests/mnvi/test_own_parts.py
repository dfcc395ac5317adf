"""A user's own posterior keeps folding, export and replicas, or the log says why not."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mnvi
from mnvi.layers import BayesianLayer


@dataclass(frozen=True)
class PerOutput(mnvi.Posterior):
    """One variance per output unit."""

    prior_variance: float

    def add_parameters(self, layer: BayesianLayer) -> None:
        units = layer.geometry.out_units(layer.weight)
        layer.log_var = nn.Parameter(layer.weight.new_full((units,), -4.0))

    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        return layer.geometry.along_outputs(layer.log_var.exp(), layer.weight).expand_as(layer.weight)

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        ratio = self.weight_variance(layer) / self.prior_variance
        return 0.5 * (ratio - ratio.log() - 1 + layer.weight.square() / self.prior_variance).sum()


@dataclass(frozen=True)
class WithOwnMoments(PerOutput):
    def moments(self, layer, affine, mean, var):  # type: ignore[no-untyped-def]
        return super().moments(layer, affine, mean, var)


def network(posterior: mnvi.Posterior) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ReLU(),
        nn.ConvTranspose2d(4, 4, 2, groups=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip
    for module in net:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
            nn.init.normal_(module.weight)
    return mnvi.convert(net.eval(), posterior)


X = torch.linspace(-1, 1, 100).view(2, 2, 5, 5)


def test_moments_are_those_of_sampled_weights() -> None:
    layer = mnvi.convert(nn.Linear(4, 3), PerOutput(1.0))
    x = mnvi.Gaussian(torch.randn(1, 4), torch.rand(1, 4))
    weight = layer.weight + layer.weight_variance().sqrt() * torch.randn(40_000, 3, 4)
    drawn = (weight @ x.sample(40_000).transpose(1, 2)).squeeze(-1) + layer.bias
    out = layer(x)
    error = drawn.var(0) * (2 / 40_000) ** 0.5
    assert ((drawn.var(0) - out.var[0]).abs() < 5 * error).all()


def test_batch_norms_fold_into_it_and_it_is_frozen() -> None:
    bayesian = network(PerOutput(1.0))
    fast = mnvi.optimize_for_inference(bayesian, compile=False)
    assert type(fast[1]).__name__ == type(fast[4]).__name__ == "FoldedBatchNorm"
    assert not any("log_var" in name for name in fast.state_dict())
    torch.testing.assert_close(fast(X).mean, bayesian(X).mean)
    torch.testing.assert_close(fast(X).var, bayesian(X).var)


def test_it_is_exported(tmp_path: Path) -> None:
    bayesian = network(PerOutput(1.0))
    mnvi.export(bayesian, tmp_path / "model.pt2", X)
    _, var = torch.export.load(tmp_path / "model.pt2").module()(X)
    torch.testing.assert_close(var, bayesian(X).var)


def test_replicas_of_it_are_trained_as_each_alone() -> None:
    def build(k: int) -> mnvi.Objective:
        net = mnvi.convert(mnvi.models.mlp(3, hidden=8), PerOutput(1.0))
        return mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=20))

    data = [(torch.randn(20, 3), torch.randn(20))] * 6
    recipe = mnvi.replicas.Recipe(epochs=3, batch_size=10, learning_rate=0.01, momentum=0.9)
    together = mnvi.replicas.train(build, data, range(6), recipe)
    alone = mnvi.replicas.train(lambda k: build(4), data[4:5], [4], recipe)
    assert together.module(4).net[0].log_var.std() > 0
    for name, value in alone.state.items():
        torch.testing.assert_close(together.state[name][4], value[0])


def test_moments_of_its_own_are_kept_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    bayesian = network(WithOwnMoments(1.0))
    with caplog.at_level(logging.WARNING, "mnvi"):
        fast = mnvi.optimize_for_inference(bayesian, compile=False)
    folding, keeping = (record.getMessage() for record in caplog.records)
    reason = "posterior WithOwnMoments(prior_variance=1.0) of layer '0' overrides Posterior.moments"
    assert folding.startswith(f"2 of 2 batch norms could not be folded: 1 ({reason}), 4 (")
    assert keeping.startswith("layers keep posteriors that override Posterior.moments as they are: 0 (WithOwnMoments")
    torch.testing.assert_close(fast(X).var, bayesian(X).var)
