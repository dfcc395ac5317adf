"""What the workers of a training send each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from two_workers import together

from benchmarks.scaling import steps
from pipeline.images import objectives
from pipeline.images.group import Group


def both(work: Callable[[Group], Any], folder: Path) -> list[Any]:
    """What this returns on each of two workers."""
    together(_keep, folder / "meeting", work, folder)
    return [torch.load(folder / f"found-{rank}", weights_only=True) for rank in range(2)]


def _keep(rank: int, work: Callable[[Group], Any], folder: Path) -> None:
    torch.save(work(Group.joined(torch.device("cpu"))), folder / f"found-{rank}")


def train_with_batch_norm(group: Group) -> list[dict[str, Tensor]]:
    """Weights and statistics as our workers get them, as torch's defaults do, and ours after taking over rank 0's."""

    def trained(wrap: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
        model, optimizer = wrap(net), torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        torch.manual_seed(1 + group.rank)
        for _ in range(4):
            optimizer.zero_grad(set_to_none=True)
            model(torch.randn(8, 1, 8, 8)).logsumexp(-1).mean().backward()
            optimizer.step()
        return net

    ours, usual = trained(group.wrap), trained(DistributedDataParallel)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    group.copy_buffers(ours)
    return [before, dict(usual.state_dict()), dict(ours.state_dict())]


@pytest.mark.slow
def test_statistics_that_are_not_sent_every_step_change_nothing_that_is_kept(tmp_path: Path) -> None:
    (first, usual, kept), (second, _, taken_over) = both(train_with_batch_norm, tmp_path)
    for name, value in usual.items():
        assert torch.equal(first[name], value) and torch.equal(kept[name], value), name
        assert torch.equal(taken_over[name], value), name
    assert not torch.equal(second["1.running_mean"], first["1.running_mean"])  # or the test would be of nothing


def bytes_of_a_step(group: Group) -> dict[str, tuple[int, int]]:
    """Sent by ResNet18 for ImageNet, and its parameters, under each method."""
    found = {}
    for method in steps.METHODS:
        objective = steps.objective(method)
        model = group.wrap(objective)
        assert isinstance(model, DistributedDataParallel)
        sent = steps.all_reduced(model, torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))
        found[method] = sent, objectives.num_parameters(objective)
    return found


@pytest.mark.slow
def test_a_step_sends_every_gradient_once(tmp_path: Path) -> None:
    found, other = both(bytes_of_a_step, tmp_path)
    assert found == other
    assert {method: parameters for method, (_, parameters) in found.items()} == {
        "deterministic": 11_689_512,
        "mnvi": 11_693_867,  # one α for each input of a layer: 0.04 % more
        "mfvi": 23_369_424,  # a variance for each weight
    }
    assert all(sent == 4 * parameters for sent, parameters in found.values())
