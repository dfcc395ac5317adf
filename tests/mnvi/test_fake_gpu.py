"""Device mistakes, found without a GPU: fake tensors that claim to be on another device, and hold no values.

An operation that mixes them with a tensor on the CPU is an error. A build of torch for CPUs cannot take gradients on a
fake "cuda" device. It can on "lazy", which is neither the CPU either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import rule_table
import torch
import torch.nn.functional as F
from networks import MODELS, POSTERIORS
from rule_table import RULES, SHAPE
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Distribution

import mnvi
from mnvi.methods import last_layer, noise_search

ELSEWHERE = torch.device("lazy", 0)
NETWORKS = {
    **MODELS,
    "resnet20": (lambda: mnvi.models.resnet20(10), (3, 16, 16)),
    "efficientnet_lite0": (lambda: mnvi.models.efficientnet_lite0(num_classes=10), (3, 32, 32)),
}
FACTORED = mnvi.MultiplicativeNoise(prior_variance=1.0, variance="factored")
ACTIVATIONS = (
    F.relu, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.mish, F.softplus, F.hardswish, F.softsign, F.hardtanh,
    F.logsigmoid, F.tanhshrink, F.relu6, F.celu, torch.tanh, torch.sigmoid, torch.exp, torch.sin, torch.abs,
)  # fmt: skip
LIKELIHOODS: dict[str, tuple[mnvi.Likelihood, tuple[int, ...], tuple[int, ...], torch.dtype]] = {
    "categorical": (mnvi.CategoricalLikelihood(), (2, 4), (2,), torch.int64),
    "bernoulli": (mnvi.BernoulliLikelihood(), (2,), (2,), torch.float32),
    "gaussian": (mnvi.GaussianLikelihood(), (2, 2), (2,), torch.float32),
    "poisson": (mnvi.PoissonLikelihood(), (2,), (2,), torch.float32),
    "student_t": (mnvi.StudentTLikelihood(), (2, 2), (2,), torch.float32),
}


@pytest.fixture(autouse=True)
def a_device_that_torch_half_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has no autocast and no module for "lazy", which it has for every GPU."""
    asked = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind != ELSEWHERE.type and asked(kind))
    monkeypatch.setattr(torch, "lazy", torch.cpu, raising=False)


@contextmanager
def validation_off() -> Iterator[None]:
    Distribution.set_default_validate_args(False)
    yield
    Distribution.set_default_validate_args(True)


def moved(module: nn.Module) -> nn.Module:
    """What ``module.to(device)`` would move is on the fake device; what it would leave on the CPU is still there."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(fake(*parameter.shape), requires_grad=parameter.requires_grad))
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, fake(*buffer.shape, dtype=buffer.dtype))
    return module


def fake(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=ELSEWHERE)


def value(*shape: int) -> mnvi.Gaussian:
    return mnvi.Gaussian.trusted(fake(*shape).requires_grad_(), fake(*shape).requires_grad_())


def moments(out: Any) -> tuple[Tensor, ...]:
    return (out.mean, out.var) if isinstance(out, mnvi.Gaussian | mnvi.JointGaussian) else (out,)


def differentiate(*outputs: Tensor) -> None:
    assert all(output.device == ELSEWHERE for output in outputs)
    torch.stack([output.sum() for output in outputs]).sum().backward()


@pytest.mark.parametrize("spatial", ("independent", "shared_weights"))
@pytest.mark.parametrize("posterior", (*POSTERIORS, "factored"))
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_train_elsewhere(network: str, posterior: str, spatial: Any) -> None:
    make, shape = NETWORKS[network]
    net = mnvi.convert(make(), POSTERIORS.get(posterior, FACTORED))
    with FakeTensorMode(), mnvi.options(spatial=spatial):
        differentiate(*moments(moved(net)(fake(2, *shape))), mnvi.kl_divergence(net))
        assert all(one.grad is not None and one.grad.device == ELSEWHERE for one in net.parameters())


@pytest.mark.parametrize("network", ("lenet", "resnet20"))
@pytest.mark.parametrize("variance", ("exact", "factored"))
def test_networks_predict_elsewhere(network: str, variance: Any) -> None:
    make, shape = NETWORKS[network]
    net = mnvi.convert(make(), POSTERIORS["multiplicative"]).eval()
    fast = mnvi.optimize_for_inference(net, compile=False, variance=variance)
    with FakeTensorMode(), torch.no_grad():
        assert all(one.device == ELSEWHERE for one in moments(moved(fast)(fake(2, *shape))))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda f: f.__name__)
def test_activations_work_elsewhere(activation: Callable) -> None:
    with FakeTensorMode():
        differentiate(*moments(activation(value(2, 3))))


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"sparse product"}))  # fake tensors are dense
def test_rules_work_elsewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tensors that the call itself makes are on the device, too. Masks are made on the CPU and then moved.
    with FakeTensorMode(allow_non_fake_inputs=True), ELSEWHERE:
        for known in ("PICKED", "PLACES"):
            monkeypatch.setattr(rule_table, known, fake(*getattr(rule_table, known).shape, dtype=torch.int64))
        differentiate(*moments(RULES[name](value(*SHAPE))))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_work_elsewhere(name: str) -> None:
    likelihood, shape, of_targets, dtype = LIKELIHOODS[name]
    with FakeTensorMode():
        out, targets = value(*shape), fake(*of_targets, dtype=dtype)
        differentiate(likelihood.expected_log_prob(out, targets))
        with validation_off():  # which reads values
            assert likelihood.predictive(out).log_prob(targets).device == ELSEWHERE
        loss = mnvi.ELBO(likelihood, num_data=10)(out, targets, fake()).loss
        assert loss.device == ELSEWHERE


def test_methods_for_trained_networks_move_their_data_there() -> None:
    batches = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)), (torch.ones(1, 3), torch.ones(1).long())]
    net = mnvi.convert(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)), mnvi.MultiplicativeNoise(1.0))
    with FakeTensorMode(allow_non_fake_inputs=True):
        net = moved(net)
        layers = mnvi.bayesian_layers(net)
        out = noise_search.Outputs(net, layers, [x for x, _ in batches]).as_it_is()
        assert {out.device, last_layer.targets_of(net, batches).device} == {ELSEWHERE}


def test_a_tensor_that_stays_behind_is_found() -> None:
    net = mnvi.convert(nn.Linear(3, 2), mnvi.MultiplicativeNoise(1.0))
    with FakeTensorMode():
        left = torch.zeros(2)
        with pytest.raises(RuntimeError, match="device"):
            moved(net)(fake(2, 3)).mean + left
