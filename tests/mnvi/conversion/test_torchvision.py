"""The smallest network of each torchvision family; ``python -m tools.torchvision_table`` tries all of them."""

import json
import subprocess
from pathlib import Path

import pytest

from tools import torchvision_table
from tools.torchvision_table import examine, names, table

SMALLEST = [
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18",
    "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vgg11_bn", "vit_b_16",
    "wide_resnet50_2",
]  # fmt: skip


# Smaller images than these were made for, or fewer hidden units: the layers are the same.
SMALLER = {
    "alexnet": {"hidden": 64},
    "vgg11": {"hidden": 64},
    "vgg11_bn": {"hidden": 64},
    "swin_t": {"pixels": 64},
    "swin_v2_t": {"pixels": 64},
    "vit_b_16": {"pixels": 64, "image_size": 64},
}
MINUTES = {"maxvit_t", "wide_resnet50_2"}  # each has a shorter relative among the others


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in MINUTES else []) for name in SMALLEST]
)
def test_a_network_of_every_family_carries_a_posterior(name: str) -> None:
    record = examine(name, **SMALLER.get(name, {}))
    assert record["layers"] > 0 and record["added"] > 0


def test_every_family_is_among_the_smallest() -> None:
    families = {"".join(filter(str.isalpha, name.split("_")[0])) for name in names()}
    assert {"".join(filter(str.isalpha, name.split("_")[0])) for name in SMALLEST} == families


def test_the_table_names_the_reason_of_a_failure() -> None:
    text = table({"net": {"model": "net", "works": False, "reason": "no rule for torch.fft"}})
    assert "0 of the 1 networks tried work" in text and "| net | no: no rule for torch.fft |" in text


@pytest.mark.parametrize(("arguments", "tried"), [([], ["new"]), (["--again"], ["new", "old"]), (["old"], ["old"])])
def test_old_passes_are_tried_again_when_asked_for(
    arguments: list[str], tried: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def fails(command: list[str], **_: object) -> subprocess.CompletedProcess:
        commands.append(command[-1])
        return subprocess.CompletedProcess(command, 1, "", "no rule for torch.fft")

    monkeypatch.setattr(torchvision_table, "RECORDS", tmp_path / "records.json")
    monkeypatch.setattr(torchvision_table, "TABLE", tmp_path / "table.md")
    monkeypatch.setattr(torchvision_table, "names", lambda: ["new", "old"])
    monkeypatch.setattr(torchvision_table.subprocess, "run", fails)
    monkeypatch.setattr("sys.argv", ["torchvision_table", *arguments])
    record = {"model": "old", "works": False, "reason": "was so before"}
    (tmp_path / "records.json").write_text(json.dumps({"old": record}))
    torchvision_table.main()
    assert commands == tried
    reason = json.loads((tmp_path / "records.json").read_text())["old"]["reason"]
    assert reason == ("no rule for torch.fft" if "old" in tried else "was so before")
