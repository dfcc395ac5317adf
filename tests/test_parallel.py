"""Gaussians through DataParallel's split and join, and through real DistributedDataParallel processes."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel, scatter_gather

import mnvi
from mnvi import parallel

WORLD = 2


@pytest.fixture
def tensors_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch moves tensors between accelerators alone; here the moves are replaced, the rest is the real thing."""
    monkeypatch.setattr(scatter_gather, "scatter", lambda t, devices, dim: t.chunk(len(devices), dim))
    monkeypatch.setattr(scatter_gather, "gather", lambda parts, device, dim: torch.cat(list(parts), dim))


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    return mnvi.convert(net, mnvi.MultiplicativeNoise(0.1))


def test_without_an_accelerator_the_module_itself_is_called() -> None:
    net, x = network(), torch.randn(5, 4).double()
    out = mnvi.DataParallel(net)(x)
    assert torch.equal(out.mean, net(x).mean) and torch.equal(out.var, net(x).var)


def test_torchs_own_gather_cannot_join_gaussians() -> None:
    """The reason for the class; when this fails, torch has learnt it and the class can go."""
    x = mnvi.Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(TypeError):
        scatter_gather.gather([x, x], torch.device("cpu"))


@pytest.mark.usefixtures("tensors_on_cpu")
def test_forward_over_two_devices_is_forward_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    wrapped = mnvi.DataParallel(net)
    wrapped.device_ids, wrapped.output_device, wrapped.dim = [0, 1], 0, 0
    wrapped.src_device_obj = torch.device("cpu")
    monkeypatch.setattr(wrapped, "replicate", lambda module, devices: [module for _ in devices])
    monkeypatch.setattr(
        wrapped, "parallel_apply", lambda nets, xs, ks: [n(*x, **k) for n, x, k in zip(nets, xs, ks, strict=True)]
    )
    for x in (torch.randn(5, 4).double(), mnvi.Gaussian(torch.randn(5, 4).double(), torch.rand(5, 4).double())):
        out = wrapped(x)
        torch.testing.assert_close(out.mean, net(x).mean)
        torch.testing.assert_close(out.var, net(x).var)


@pytest.mark.usefixtures("tensors_on_cpu")
def test_gaussians_and_samples_are_split_along_the_batch_and_joined_again() -> None:
    value = {
        "gaussian": mnvi.Gaussian(torch.arange(10.0).view(5, 2), torch.arange(10.0).view(5, 2) + 1),
        "samples": mnvi.Samples(torch.arange(30.0).view(3, 5, 2)),
        "plain": [torch.arange(5.0), None, "text"],
    }
    pieces = parallel.scatter(value, [0, 1])
    assert [piece["gaussian"].shape for piece in pieces] == [(3, 2), (2, 2)]
    assert [piece["samples"].values.shape for piece in pieces] == [(3, 3, 2), (3, 2, 2)]
    assert all(piece["plain"][1:] == [None, "text"] for piece in pieces)
    joined = parallel.gather(pieces, torch.device("cpu"))
    assert torch.equal(joined["gaussian"].mean, value["gaussian"].mean)
    assert torch.equal(joined["gaussian"].var, value["gaussian"].var)
    assert torch.equal(joined["samples"].values, value["samples"].values)
    assert torch.equal(joined["plain"][0], value["plain"][0]) and joined["plain"][1:] == [None, "text"]


@pytest.mark.usefixtures("tensors_on_cpu")
def test_batch_smaller_than_the_number_of_devices_uses_fewer() -> None:
    assert len(parallel.scatter((mnvi.Gaussian(torch.zeros(1, 2), torch.ones(1, 2)), 3), [0, 1, 2])) == 1


@pytest.mark.usefixtures("tensors_on_cpu")
def test_outputs_of_different_structure_are_refused() -> None:
    x = mnvi.Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="different structures"):
        parallel.gather([x, x.mean], torch.device("cpu"))


class WithUnusedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = network()
        self.unused = mnvi.convert(nn.Linear(2, 2).double(), mnvi.MultiplicativeNoise(0.1))

    def forward(self, x: Tensor) -> mnvi.Gaussian:
        out: mnvi.Gaussian = self.used(x)
        return out


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 4, generator=generator).double(), torch.randint(3, (6,), generator=generator)


def gradients(net: nn.Module, inner: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(approximation="second_order"), num_data=100, kappa=0.5)
    elbo(net(x), y, mnvi.kl_divergence(inner)).loss.backward()
    return {name: p.grad for name, p in inner.named_parameters() if p.grad is not None}


def worker(rank: int, folder: str, find_unused: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    try:
        module: Any = WithUnusedLayer() if find_unused else network()
        inner = module.used if find_unused else module
        x, y = batch()
        share = slice(rank * 3, rank * 3 + 3)
        net = DistributedDataParallel(module, find_unused_parameters=find_unused)
        torch.save(gradients(net, inner, x[share], y[share]), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("find_unused", [False, True], ids=["all used", "find unused parameters"])
def test_distributed_gradients_are_those_of_the_whole_batch(tmp_path: Path, find_unused: bool) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(worker, (str(tmp_path), find_unused), nprocs=WORLD)
    net = network()
    expected = gradients(net, net, *batch())
    for rank in range(WORLD):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


def test_distributed_finds_the_tensors_of_a_gaussian() -> None:
    """Else every parameter would count as unused where find_unused_parameters is set."""
    from torch.nn.parallel.distributed import _find_tensors

    x = mnvi.Gaussian(torch.zeros(2), torch.ones(2))
    assert [id(t) for t in _find_tensors(copy.copy([x]))] == [id(x.mean), id(x.var)]
