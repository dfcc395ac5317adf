"""`weights:` of an experiment: from a file, from the registry, from torchvision, and what does not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import mnvi
from pipeline.data import released_weights, starting_weights
from pipeline.errors import StudyError
from pipeline.registry import networks

TORCHVISIONS = "torchvision.models:mobilenet_v3_small"


def experiment(network: str, weights: str | None) -> Any:
    return SimpleNamespace(network=network, weights=weights, arguments={}, stem="cifar")


@pytest.fixture
def file(tmp_path: Path) -> str:
    torch.manual_seed(0)
    torch.save(mnvi.models.resnet20().state_dict(), tmp_path / "trained.pt")
    return str(tmp_path / "trained.pt")


def test_a_file_is_loaded(file: str) -> None:
    net = networks.build(experiment("resnet20", file), 0.0, num_classes=10, in_channels=3)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in torch.load(file).items())


def test_a_last_layer_for_other_classes_stays_random(file: str) -> None:
    net = networks.build(experiment("resnet20", file), 0.0, num_classes=3, in_channels=3)
    assert net.fc.weight.shape[0] == 3
    assert torch.equal(net.conv1.weight, torch.load(file)["conv1.weight"])


@pytest.mark.parametrize(
    ("network", "channels", "message"),
    [
        ("resnet18", 3, r"weights: .*trained.pt: has no layer1.0.* than resnet18|weights: .*has .* than resnet18"),
        ("resnet20", 1, r"conv1.weight has the shape \[16, 3, 3, 3\], not \[16, 1, 3, 3\]; they are for another"),
    ],
)
def test_weights_of_another_network_are_refused(file: str, network: str, channels: int, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        networks.build(experiment(network, file), 0.0, num_classes=10, in_channels=channels)


def test_released_weights_come_in_the_order_of_the_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = mnvi.models.efficientnet_lite0()
    torch.save({str(k): value for k, value in enumerate(trained.state_dict().values())}, tmp_path / "w.pth")
    monkeypatch.setattr(released_weights, "find", lambda name: tmp_path / "w.pth")
    net = networks.build(experiment("efficientnet_lite0", "efficientnet-lite0"), 0.0, num_classes=5, in_channels=3)
    assert net.fc.out_features == 5 and torch.equal(net.stem[1].weight, trained.stem[1].weight)


def test_torchvisions_networks_get_their_classes_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnvi._torchvision import torchvision

    trained: nn.Module = torchvision.models.mobilenet_v3_small()
    entry = SimpleNamespace(get_state_dict=lambda **_: trained.state_dict())
    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda name: {"DEFAULT": entry})
    net = networks.build(experiment(TORCHVISIONS, "DEFAULT"), 0.0, num_classes=5, in_channels=3)
    assert net.classifier[-1].out_features == 5
    assert torch.equal(net.classifier[0].weight, trained.classifier[0].weight)


def test_a_name_that_torchvision_does_not_know() -> None:
    with pytest.raises(StudyError, match="weights: NONE is none of mobilenet_v3_small's in torchvision"):
        starting_weights.load(nn.Linear(1, 1), "NONE", TORCHVISIONS)


def test_torchvision_does_not_know_the_network() -> None:
    with pytest.raises(StudyError, match="torchvision has no network mobile, and so no weights DEFAULT for it"):
        starting_weights.load(nn.Linear(1, 1), "DEFAULT", "torchvision.models:mobile")


def test_released_weights_of_another_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pth")
    monkeypatch.setattr(released_weights, "find", lambda name: tmp_path / "w.pth")
    with pytest.raises(StudyError, match="has 1 tensors, but mine has 2; they are for efficientnet_lite0"):
        starting_weights.load(nn.Linear(1, 1), "efficientnet-lite0", "mine")


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3, "model": {}}, torch.zeros(2)])
def test_a_file_without_a_state_dict(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(StudyError, match=r"w.pt: holds no state_dict; write one with torch.save"):
        starting_weights.load(nn.Linear(1, 1), str(tmp_path / "w.pt"), "mine")


def test_a_network_for_trained_weights_does_not_read_those_it_started_from() -> None:
    missing = experiment("resnet20", "nowhere.pt")
    assert networks.build(missing, 0.0, start=False, num_classes=10, in_channels=3).fc.out_features == 10
    with pytest.raises(StudyError, match=r"nowhere.pt: no such file"):
        networks.build(missing, 0.0, num_classes=10, in_channels=3)


def test_torchvisions_networks_are_built_in_a_process_that_has_not_imported_it() -> None:
    code = (
        "from types import SimpleNamespace; from pipeline.registry import networks\n"
        f"experiment = SimpleNamespace(network={TORCHVISIONS!r}, weights=None, arguments={{}})\n"
        "print(networks.build(experiment, 0.0, num_classes=5, in_channels=3).classifier[-1].out_features)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "5\n", done.stderr
