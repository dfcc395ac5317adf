"""Positions share weights: against sampled weights, through networks, compiled, in training and in pickles."""

import copy
import io

import pytest
import torch
from torch import nn

import mnvi
from mnvi.rules.fallbacks import listening

POSTERIORS = {
    "multiplicative": mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=-3.0),
    "mean field": mnvi.MeanField(prior_variance=1.0, init_log_var=-6.0),
    "shared mean field": mnvi.SharedMeanField(prior_variance=1.0, init_log_var=-6.0),
}


def sampled_variance(model: nn.Module, plain: nn.Module, x: torch.Tensor, num_samples: int) -> torch.Tensor:
    """Variance of a network's output over weights drawn from the posterior."""
    generator = torch.Generator().manual_seed(0)
    net = copy.deepcopy(plain).eval()
    modules = dict(net.named_modules())
    layers = [(modules[n], m) for n, m in model.named_modules() if isinstance(m, mnvi.layers.BayesianLayer)]
    outs = []
    with torch.no_grad():
        for _ in range(num_samples):
            for target, layer in layers:
                noise = torch.randn(layer.weight.shape, generator=generator, dtype=layer.weight.dtype)
                target.weight.copy_(layer.weight + layer.weight_variance().sqrt() * noise)
                if (spread := layer.bias_variance()) is not None:
                    noise = torch.randn(layer.bias.shape, generator=generator, dtype=layer.bias.dtype)
                    target.bias.copy_(layer.bias + spread.sqrt() * noise)
            outs.append(net(x))
    return torch.stack(outs).double().var(0)


def all_convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 5, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def images(size: int = 12) -> torch.Tensor:
    coarse = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    return nn.functional.interpolate(coarse, size=size, mode="bilinear") + 0.5


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_the_variance_of_an_average_agrees_with_sampled_weights(posterior):
    net, x = all_convolutional().eval(), images()
    model = mnvi.convert(net, POSTERIORS[posterior]).eval()
    expected = sampled_variance(model, net, x, 2000)
    with torch.no_grad():
        independent = (model(x).var.double() / expected).median()
        with mnvi.options(spatial="shared_weights"):
            shared = (model(x).var.double() / expected).median()
    assert independent < 0.3
    assert 0.85 < shared < 1.15


def test_the_default_stays_independent():
    model = mnvi.convert(nn.Conv2d(2, 3, 3), POSTERIORS["multiplicative"])
    assert model(images()).shared is None


def test_a_network_without_averages_does_not_change():
    torch.manual_seed(0)
    net = mnvi.convert(mnvi.models.lenet(), POSTERIORS["multiplicative"]).eval()
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        out = net(x)
        with mnvi.options(spatial="shared_weights"):
            shared = net(x)
    torch.testing.assert_close(shared.mean, out.mean)
    torch.testing.assert_close(shared.var, out.var)


def test_a_compiled_network_gives_the_same_without_graph_breaks():
    model = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).eval()
    x = images()
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(compiled.var, model(x).var)


def test_every_parameter_gets_a_gradient():
    model = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).train()
    with mnvi.options(spatial="shared_weights"):
        model(images()).var.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model[:-3].parameters())


def test_a_pickle_keeps_the_covariance():
    x = mnvi.Gaussian.trusted(torch.zeros(1, 2, 3), torch.ones(1, 2, 3), torch.ones(1, 2, 1))
    file = io.BytesIO()
    torch.save(x, file)
    again = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert torch.equal(again.shared, x.shared)
    assert torch.equal(copy.deepcopy(x).shared, x.shared)


def test_functions_that_fall_back_are_reported():
    x = mnvi.Gaussian.trusted(torch.zeros(1, 2, 3), torch.ones(1, 2, 3), torch.ones(1, 2, 1))
    names: list[str] = []
    with mnvi.options(spatial="shared_weights"), listening(names.append):
        torch.relu(x)
        torch.cumsum(x, -1)
    assert names == ["torch.cumsum"]
