"""Factored variances for inference: which layers, folding, copies, compiling, export."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mnvi

POSTERIORS = {
    "mnvi": mnvi.MultiplicativeNoise(1.0, init_rho=-1.0),
    "mfvi": mnvi.MeanField(1.0, init_log_var=-4.0),
    "smfvi": mnvi.SharedMeanField(1.0, init_log_var=-4.0),
}
FACTORED = {name: mnvi.posteriors.with_variance(posterior, "factored") for name, posterior in POSTERIORS.items()}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)) + x)


def network() -> nn.Module:
    """Batch norms, a residual sum, max-pooling, groups, a transposed convolution and linear layers."""
    torch.manual_seed(0)
    net = nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, 16, 3),
            norm=nn.BatchNorm2d(16),
            relu=nn.ReLU(),
            block=Residual(),
            pool=nn.MaxPool2d(2),
            grouped=nn.Conv2d(16, 32, 3, groups=2, padding=1),
            relu2=nn.ReLU(),
            up=nn.ConvTranspose2d(32, 16, 2, stride=2),
            norm2=nn.BatchNorm2d(16),
            relu3=nn.ReLU(),
            flatten=nn.Flatten(),
            hidden=nn.Linear(16 * 36, 32),
            relu4=nn.ReLU(),
            head=nn.Linear(32, 20),
        )
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.running_mean)
    with torch.no_grad():
        net.norm.weight[0] = 0.0  # folding must not divide by it
    return net.eval()


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def close(one: mnvi.Gaussian, other: mnvi.Gaussian) -> None:
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.var, other.var, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_network_trained_factored_gives_the_same_after_folding(posterior: str) -> None:
    net = mnvi.convert(network(), FACTORED[posterior])
    fast = mnvi.optimize_for_inference(net, compile=False)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    close(fast(X), net(X))


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_network_trained_exactly_becomes_the_factored_one(posterior: str) -> None:
    net, factored = (mnvi.convert(network(), of[posterior]) for of in (POSTERIORS, FACTORED))
    fast = mnvi.optimize_for_inference(net, compile=False, variance="factored")
    torch.testing.assert_close(fast(X).mean, factored(X).mean, rtol=0.02, atol=0.01)
    torch.testing.assert_close(fast(X).var, factored(X).var, rtol=0.05, atol=0.0)  # separable taps
    off = (fast(X).var / net(X).var).log().square().mean().sqrt()
    assert 0 < off < 0.15  # logit variances, root mean square


def test_network_trained_factored_becomes_exact_again() -> None:
    net, factored = (mnvi.convert(network(), of["mnvi"]) for of in (POSTERIORS, FACTORED))
    close(mnvi.optimize_for_inference(factored, compile=False, variance="exact")(X), net(X))


def test_last_and_small_layers_and_those_that_are_missed_stay_exact(caplog: pytest.LogCaptureFixture) -> None:
    net = mnvi.convert(network(), POSTERIORS["mnvi"])
    with torch.no_grad():
        net.hidden.weight.mul_(torch.eye(32, 16 * 36))  # every output sees an input of its own
    with caplog.at_level(logging.INFO, "mnvi"):
        fast = mnvi.optimize_for_inference(net, compile=False, variance="factored")
    assert "2 of 6 layers keep exact variances: hidden, head" in caplog.text
    exact = [
        name for name, layer in fast.named_modules() if "second_moment" in dict(layer.named_buffers(recurse=False))
    ]
    assert exact == ["hidden", "head"]


def clustered(net: nn.Module) -> None:
    """As trained weights may be: few inputs count, and each output of a layer listens to a third of these."""
    weight = net.hidden.weight
    inputs = torch.arange(weight.shape[1])
    heard = (torch.arange(32)[:, None] % 3 == inputs % 3) & (inputs < 21)
    with torch.no_grad():
        weight.copy_(weight.sign() * torch.where(heard, 0.3, 0.003))


@pytest.mark.parametrize("posterior", [POSTERIORS["mnvi"], mnvi.MeanField(1.0, init_log_var=-14.0)])
def test_layer_that_one_term_misses_takes_more(posterior: mnvi.Posterior) -> None:
    net = mnvi.convert(network(), posterior)
    clustered(net)
    fast = mnvi.optimize_for_inference(net, compile=False, variance="factored")
    row = mnvi.summary(fast)["hidden"]
    assert row.terms == len(fast.hidden.rows) and 1 < row.terms <= 4 and row.missed <= 0.3
    assert f"variances factored in {row.terms} terms, off by {row.missed:.2f}" in row.remarks
    assert mnvi.summary(fast)["stem"].terms == 1
    off = (fast(X).var / net(X).var).log().square().mean().sqrt()
    assert 0 < off < 0.1  # logit variances, root mean square


def test_factored_variances_go_together_with_shared_weights() -> None:
    """Covariances between positions use the weights' own variances, so only variances change."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()]
    plain = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 20)).eval()
    net, factored = (mnvi.convert(plain, of["mnvi"]) for of in (POSTERIORS, FACTORED))
    fast = mnvi.optimize_for_inference(factored, compile=False)
    with mnvi.options(spatial="shared_weights"):
        outs = [model(X) for model in (net, factored, fast)]
    close(outs[2], outs[1])
    off = (outs[1].var / outs[0].var).log().square().mean().sqrt()
    assert 0 < off < 0.15
    assert not torch.allclose(outs[1].var, factored(X).var, rtol=1e-3)  # the option does something


def test_taps_are_separate_where_that_changes_little() -> None:
    net = mnvi.convert(network(), POSTERIORS["mnvi"])
    with torch.no_grad():  # the taps of this layer depend on the channel
        net.block.conv.weight[:, ::2, 0].mul_(0.01)
        net.block.conv.weight[:, 1::2, 2].mul_(0.01)
    fast = mnvi.optimize_for_inference(net, compile=False, variance="factored")
    assert fast.stem.taps is not None and fast.block.conv.taps is None and fast.grouped.taps is None
    assert mnvi.optimize_for_inference(mnvi.convert(network(), FACTORED["mnvi"]), compile=False).stem.taps is None


def test_optimised_model_knows_its_weight_variances() -> None:
    net = mnvi.convert(nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 2)), FACTORED["mnvi"])
    fast = mnvi.optimize_for_inference(net, compile=False)
    torch.testing.assert_close(fast[0].weight_variance(), net[0].weight_variance().detach())


def test_factored_model_cannot_become_exact() -> None:
    fast = mnvi.optimize_for_inference(mnvi.convert(network(), FACTORED["mnvi"]), compile=False)
    with pytest.raises(ValueError, match="use the model it was made from"):
        mnvi.optimize_for_inference(fast, compile=False, variance="exact")
    close(mnvi.optimize_for_inference(fast, compile=False, variance="factored")(X), fast(X))


def test_unknown_form_is_named() -> None:
    with pytest.raises(ValueError, match=r"optimize_for_inference: variance='quick' must be 'exact' or 'factored'"):
        mnvi.optimize_for_inference(mnvi.convert(network(), POSTERIORS["mnvi"]), variance="quick")  # type: ignore


def test_posterior_of_a_users_own_is_factored_too() -> None:
    class Constant(mnvi.Posterior):
        def add_parameters(self, layer: mnvi.layers.BayesianLayer) -> None:
            pass

        def weight_variance(self, layer: mnvi.layers.BayesianLayer) -> Tensor:
            return torch.full_like(layer.weight, 0.1)

        def kl_divergence(self, layer: mnvi.layers.BayesianLayer) -> Tensor:
            return layer.weight.sum() * 0

    net = mnvi.convert(nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 2)), Constant())
    fast = mnvi.optimize_for_inference(net, compile=False, variance="factored")
    x = torch.randn(5, 30)
    close(fast(x), net(x))  # constant variances are an outer product
    assert fast[0].posterior.is_factored(fast[0])


def test_state_dict_and_copies_give_the_same() -> None:
    net = mnvi.convert(network(), FACTORED["mnvi"])
    fast, other = (mnvi.optimize_for_inference(net, compile=False) for _ in range(2))
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(fast.state_dict())
    close(other(X), fast(X))
    close(copy.deepcopy(fast)(X), fast(X))
    again = mnvi.convert(network(), FACTORED["mnvi"])
    again.load_state_dict(mnvi.convert(network(), POSTERIORS["mnvi"]).state_dict())  # the same names either way


def small() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.Flatten(), nn.Linear(144, 2)
    return mnvi.convert(nn.Sequential(*layers), FACTORED["mnvi"])


@pytest.mark.slow
def test_compiled_model_gives_the_same() -> None:
    torch.compiler.reset()
    close(mnvi.optimize_for_inference(small())(X), small()(X))


@pytest.mark.slow
def test_compiled_training_has_the_gradients_of_eager_training() -> None:
    torch.compiler.reset()
    net = small()
    gradients = []
    for call in (net, torch.compile(net)):
        net.zero_grad()
        out = call(X)
        (out.mean.square() + out.var).sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in net.named_parameters()})
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def test_exported_file_gives_the_same(tmp_path: Path) -> None:
    net = mnvi.convert(network(), FACTORED["mnvi"])
    mnvi.export(net, tmp_path / "model.pt2", X)
    mean, variance = torch.export.load(tmp_path / "model.pt2").module()(X)
    close(mnvi.Gaussian(mean, variance), net(X))
