"""Gaussians through real processes: DistributedDataParallel and FSDP2."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from two_workers import together

import mnvi


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    return mnvi.convert(net, mnvi.MultiplicativeNoise(0.1))


class WithUnusedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = network()
        self.unused = mnvi.convert(nn.Linear(2, 2).double(), mnvi.MultiplicativeNoise(0.1))

    def forward(self, x: Tensor) -> mnvi.Gaussian:
        out: mnvi.Gaussian = self.used(x)
        return out


class Averaging(nn.Module):
    """Averages over positions that share weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 3, 1),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )  # fmt: skip
        self.net = mnvi.convert(net.double(), mnvi.MultiplicativeNoise(0.1))

    def forward(self, x: Tensor) -> mnvi.Gaussian:
        with mnvi.options(spatial="shared_weights"):
            out: mnvi.Gaussian = self.net(x)
        return out


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 4, generator=generator).double(), torch.randint(3, (6,), generator=generator)


def gradients(net: nn.Module, inner: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(approximation="second_order"), num_data=100, kappa=0.5)
    elbo(net(x), y, mnvi.kl_divergence(inner)).loss.backward()
    return {name: p.grad for name, p in inner.named_parameters() if p.grad is not None}


def worker(rank: int, folder: Path, find_unused: bool, averaging: bool) -> None:
    module: Any = WithUnusedLayer() if find_unused else Averaging() if averaging else network()
    inner = module.used if find_unused else module
    x, y = batch()
    share = slice(rank * 3, rank * 3 + 3)
    net = DistributedDataParallel(module, find_unused_parameters=find_unused)
    torch.save(gradients(net, inner, x[share], y[share]), folder / f"{rank}.pt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("find_unused", "averaging"),
    [(False, False), (True, False), (False, True)],
    ids=["all used", "find unused parameters", "positions share weights"],
)
def test_distributed_gradients_are_those_of_the_whole_batch(tmp_path: Path, find_unused: bool, averaging: bool) -> None:
    together(worker, tmp_path / "meeting", tmp_path, find_unused, averaging)
    net = Averaging() if averaging else network()
    expected = gradients(net, net, *batch())
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


def sharded(rank: int, folder: Path) -> None:
    objective = objective_of(network())
    fully_shard(objective)
    x, y = batch()
    share = slice(rank * 3, rank * 3 + 3)
    trained(objective, x[share], y[share])
    whole = {name: cast(DTensor, parameter).full_tensor() for name, parameter in objective.named_parameters()}
    held = sum(cast(DTensor, parameter).to_local().numel() for parameter in objective.parameters())
    torch.save((whole, held), folder / f"{rank}.pt")


def objective_of(net: nn.Module) -> mnvi.Objective:
    likelihood = mnvi.CategoricalLikelihood(approximation="second_order")
    return mnvi.Objective(net, mnvi.ELBO(likelihood, num_data=100, kappa=0.5))


def trained(objective: mnvi.Objective, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(objective.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        objective(x, y).loss.backward()
        optimizer.step()


@pytest.mark.slow
def test_a_sharded_objective_trains_as_the_whole_one(tmp_path: Path) -> None:
    """FSDP2: each process keeps its share of parameters and momentum; the KL sees them all."""
    together(sharded, tmp_path / "meeting", tmp_path)
    objective = objective_of(network())
    count = sum(parameter.numel() for parameter in objective.parameters())
    trained(objective, *batch())
    for rank in range(2):
        whole, held = torch.load(tmp_path / f"{rank}.pt")
        assert held < 0.7 * count
        torch.testing.assert_close(whole, {name: p.detach() for name, p in objective.named_parameters()})


def test_a_gaussian_says_how_to_shard_where_fsdp_would_copy_it() -> None:
    with pytest.raises(TypeError, match=r"fully_shard\(mnvi\.Objective\(net, elbo\)\)"):
        dataclasses.replace(mnvi.Gaussian(torch.zeros(2), torch.ones(2)), mean=torch.ones(2))


def test_distributed_finds_the_tensors_of_a_gaussian() -> None:
    """Otherwise every parameter would count as unused with find_unused_parameters=True."""
    from torch.nn.parallel.distributed import _find_tensors

    x = mnvi.Gaussian(torch.zeros(2), torch.ones(2))
    assert [id(t) for t in _find_tensors(copy.copy([x]))] == [id(x.mean), id(x.var)]
