"""Batch norm over two workers against batch norm of the whole batch in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from two_workers import together

import mnvi
from pipeline.images.group import Group
from pipeline.images.synced_norm import Synced, synchronise

KINDS = ("tensor", "gaussian", "constant_scale")
SHARES = (3, 5)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2))
    return net.double()


def whole(kind: str) -> tuple[Tensor, ...]:
    numbers = torch.Generator().manual_seed(1)
    mean = 2 * torch.randn(sum(SHARES), 3, 8, 8, dtype=torch.float64, generator=numbers) + 1
    return (mean,) if kind == "tensor" else (mean, torch.rand(mean.shape, dtype=torch.float64, generator=numbers))


def options(kind: str) -> mnvi.options:
    return mnvi.options(batch_norm="constant_scale" if kind == "constant_scale" else "full_gradient")


def through(net: nn.Module, parts: tuple[Tensor, ...], weight: float) -> tuple[Tensor, ...]:
    """The outputs and, in the parameters, the gradient of a loss that uses means and variances."""
    out = net(parts[0] if len(parts) == 1 else mnvi.Gaussian(*parts))
    found = (out,) if isinstance(out, Tensor) else (out.mean, out.var)
    loss = sum((torch.sin(one) * torch.linspace(1, 2, one[0].numel()).view(one[0].shape)).sum() for one in found)
    assert isinstance(loss, Tensor)
    (weight * loss).backward()
    return tuple(one.detach() for one in found)


def work(rank: int, result: str) -> None:
    found = {}
    for kind in KINDS:
        net = network()
        synchronise(net)
        model = Group.joined(torch.device("cpu")).wrap(net)
        share = tuple(one.split(SHARES)[rank] for one in whole(kind))
        with options(kind):
            outputs = through(model, share, weight=2.0)  # gradients are averaged over two workers
        found[kind] = outputs, [parameter.grad for parameter in net.parameters()], net.state_dict()
    torch.save(found, f"{result}{rank}")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("workers")
    together(work, folder / "meeting", str(folder / "result"))
    return [torch.load(f"{folder}/result{rank}") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_normalise_means_and_variances_as_one_does(workers: list[dict[str, Any]], kind: str) -> None:
    found = [one[kind] for one in workers]
    alone = network()
    with options(kind):
        expected = through(alone, whole(kind), weight=1.0)
    close = {"rtol": 1e-10, "atol": 1e-12}
    for number, one in enumerate(expected):
        torch.testing.assert_close(torch.cat([outputs[number] for outputs, _, _ in found]), one, **close)
    for outputs, gradients, state in found:
        assert len(outputs) == len(expected)
        for gradient, parameter in zip(gradients, alone.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, **close)
        assert state.keys() == alone.state_dict().keys()
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(state[name], value, **close)


def test_one_worker_and_evaluation_have_plain_batch_norm() -> None:
    plain, synced = network(), network()
    synchronise(synced)
    assert [type(layer) for layer in synced].count(Synced) == 2
    (x,) = whole("tensor")
    for mode in (True, False):
        plain.train(mode), synced.train(mode)
        assert torch.equal(plain(x), synced(x))
    for name, value in plain.state_dict().items():
        assert torch.equal(synced.state_dict()[name], value)
