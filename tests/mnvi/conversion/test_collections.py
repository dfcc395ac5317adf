"""Networks of third-party collections; ``python -m tools.collections_table`` tries all of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tools import collections_table
from tools.collected.checks import Failed, dependent, examine
from tools.collected.subject import Subject
from tools.collections_table import COLLECTIONS, RECORDS, TABLE, names, table, try_one

SPOT_CHECKS = [
    ("timm", "resnet"),
    ("timm", "vision_transformer"),
    ("timm", "convnext"),
    ("transformers", "bert"),
    ("transformers", "llama"),
    ("transformers", "t5"),
    ("torchvision", "lraspp_mobilenet_v3_large"),
]


def records() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDS.read_text())
    return found


def test_the_page_is_what_the_records_say() -> None:
    assert TABLE.read_text() == table(records())


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_every_family_was_tried(collection: str) -> None:
    assert set(records()[collection]["networks"]) == set(names(collection))


def test_the_collections_are_wide_enough() -> None:
    assert len(names("timm")) >= 55
    assert len(names("transformers")) >= 12 and {"llama", "t5", "wav2vec2"} <= set(names("transformers"))


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_every_failure_has_a_reason(collection: str) -> None:
    for record in records()[collection]["networks"].values():
        assert record["works"] or (record["stage"] and record["reason"])


@pytest.mark.slow
@pytest.mark.parametrize(("collection", "name"), SPOT_CHECKS, ids=map("/".join, SPOT_CHECKS))
def test_the_table_still_holds(collection: str, name: str) -> None:
    package = COLLECTIONS[collection].PACKAGE
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; it is for this table alone: pip install {package}")
    record, recorded = try_one(collection, name), records()[collection]["networks"][name]
    assert record["works"] == recorded["works"], record


class Net(nn.Module):
    """Two layers with a given function between them."""

    def __init__(self, between: Callable[[Any], Any] = torch.relu) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(3, 4), nn.Linear(4, 2), between

    def forward(self, x: Any) -> dict[str, Any]:
        return {"out": self.second(self.between(self.first(x)))}


def subject(net: nn.Module) -> Subject:
    return Subject(net, {"x": torch.randn(5, 3)}, "3")


def test_a_network_that_passes_all_checks() -> None:
    record = examine(lambda: subject(Net()))
    assert record["works"] and record["layers"] == 2 and record["precision"] == "float64"
    assert record["share"] == (12 + 8) / 26 and record["added"] == 3 + 4


def doubled(x: Any) -> Any:
    return torch.mean(torch.stack([x, torch.relu(x)]), 0)


def test_lines_with_dependent_values_are_listed() -> None:
    assert dependent(lambda: subject(Net())) == []
    (place,) = dependent(lambda: subject(Net(doubled)))
    assert place.startswith("mean (") and "test_collections.py, line" in place


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_no_network_that_works_warns_of_dependent_values(collection: str) -> None:
    networks = records()[collection]["networks"]
    assert {name: r["dependent"] for name, r in networks.items() if r["works"] and r["dependent"]} == {}


class Subclass(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight.T


def without_gradient(x: Any) -> Any:
    return x if isinstance(x, Tensor) else x.detach()


def only_for_gaussians(x: Any) -> Any:
    return torch.relu(x) if isinstance(x, Tensor) else torch.relu(x) + 0.1


def broken() -> Subject:
    raise ValueError("no such network")


@pytest.mark.parametrize(
    ("build", "stage", "reason"),
    [
        (broken, "the network itself", "ValueError: no such network"),
        (lambda: subject(nn.Sequential(Subclass(3, 2))), "the network itself", "TypeError"),  # no argument x
        (lambda: Subject(nn.Sequential(Subclass(3, 2)), (torch.randn(5, 3),), "3"), "convert", "ValueError: convert"),
        (lambda: subject(Net(torch.fft.fft)), "the network itself", "RuntimeError"),
        (lambda: subject(Net(torch.special.i0)), "forward, training", "NoRuleError: no rule for torch.special.i0"),
        (lambda: subject(Net(without_gradient)), "backward, training", "AssertionError: first.bias gets no gradient"),
        (lambda: subject(Net(only_for_gaussians)), "mean without noise", "AssertionError: the mean is off by"),
    ],
)
def test_a_network_that_fails_a_check(build: Callable[[], Subject], stage: str, reason: str) -> None:
    with pytest.raises(Failed) as caught:
        examine(build)
    assert caught.value.stage == stage and caught.value.reason.startswith(reason)


def test_a_process_that_dies_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collections_table, "examine", lambda build: os._exit(7))
    assert try_one("timm", "resnet") == {"works": False, "stage": "process", "reason": "ended with exit code 7"}


def test_a_network_that_takes_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collections_table, "PATIENCE", 0.1)
    monkeypatch.setattr(collections_table, "examine", lambda build: subprocess.run(["sleep", "60"]))
    assert try_one("timm", "resnet")["stage"] == "time"


def test_the_command_tries_what_is_asked_for_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    tried: list[str] = []

    def fake(collection: str, name: str) -> dict[str, Any]:
        tried.append(f"{collection}/{name}")
        return {"works": False, "stage": "convert", "reason": "a | b"}

    monkeypatch.setattr(collections_table, "RECORDS", tmp_path / "records.json")
    monkeypatch.setattr(collections_table, "TABLE", tmp_path / "table.md")
    monkeypatch.setattr(collections_table, "try_one", fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "timm" else object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setattr(sys, "argv", ["collections_table", "transformers/t5", "timm", "r3d_18"])
    collections_table.main()
    assert tried == ["transformers/t5", "torchvision/r3d_18"]
    assert "| t5 | no, convert: a \\| b |" in (tmp_path / "table.md").read_text()
    monkeypatch.setattr(sys, "argv", ["collections_table"])
    collections_table.main()
    assert len(tried) == len(names("transformers")) + len(names("torchvision")) == len(set(tried))
    tried.clear()
    monkeypatch.setattr(sys, "argv", ["collections_table", "--failed", "torchvision"])
    collections_table.main()
    assert tried == [f"torchvision/{name}" for name in names("torchvision")]
