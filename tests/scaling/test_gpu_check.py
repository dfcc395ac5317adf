"""`make gpu-check` without a GPU: every part on a CPU, and what the report says about parts that fail."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tools.gpu_check import __main__ as command
from tools.gpu_check import parts
from tools.gpu_check.parts import PARTS, SETTINGS


def lines_of(part: str, folder: Path) -> list[str]:
    return list(PARTS[part](SETTINGS["cpu"], folder))


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("moments", 6),
        ("half", 3),
        ("resume", 2),
        ("speed-mnvi", 2),
        pytest.param("export", 2, marks=pytest.mark.slow),
        pytest.param("ddp", 3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")
def test_a_part_passes_on_a_cpu(part: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.images.devices.READ_EVERY", 50)  # which `resume` sets, and this restores
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert len(lines_of(part, tmp_path)) == number


def test_the_compiler_is_tried_on_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, by_inductor = [], nn.Module.compile

    def quickly(module: nn.Module, options: object, **settings: bool) -> None:  # inductor takes a minute: the soak test
        asked.append(type(module).__name__)
        by_inductor(module, backend="eager", **settings)

    monkeypatch.setattr(nn.Module, "compile", quickly)
    assert len(lines_of("compile", tmp_path)) == 1
    assert asked == ["Objective"]
    torch.compiler.reset()


@pytest.mark.soak
def test_the_whole_check_passes_on_a_cpu(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cpu", "--minutes", "20"]) == 0
    assert f"{len(PARTS)} of {len(PARTS)} parts passed" in capfd.readouterr().out


def test_moments_that_differ_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_off", lambda found, expected: 0.5)
    with pytest.raises(
        parts.Wrong, match=r"lenet, MultiplicativeNoise: means off by 5.0e-01.*expected less than 0.001"
    ):
        lines_of("moments", tmp_path)


def test_without_a_gpu_it_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main([]) == 1
    said = capsys.readouterr().err
    assert "sees no GPU" in said and "--device cpu" in said and "speed-mnvi" in said


def reported(monkeypatch: pytest.MonkeyPatch, script: str, limit: float = 60.0) -> command.Outcome:
    """The outcome of a part whose process runs this script."""
    popen = command.subprocess.Popen

    def instead(arguments: list[str], **options: Any) -> Any:
        assert arguments[-2:] == ["--only", "half"]
        return popen([sys.executable, "-c", script], **options)

    monkeypatch.setattr(command.subprocess, "Popen", instead)
    return command.run("half", "cpu", limit)


def test_a_part_that_fails_is_reported_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = reported(monkeypatch, "print('before'); raise SystemExit('no such kernel')")
    assert not outcome.passed
    assert outcome.lines == ["before", "no such kernel", "ended with code 1"]
    assert "**half**: FAILED" in outcome.markdown() and "    no such kernel" in outcome.markdown()


def test_a_part_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = reported(monkeypatch, "import time; time.sleep(600)", limit=0.5)
    assert not outcome.passed
    assert outcome.lines[-1].startswith("stopped: not done within")


def test_parts_for_which_no_time_is_left_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cpu", "--minutes", "0", "--parts", "half", "ddp"]) == 1
    said = capsys.readouterr().out
    assert said.count("not run: no time was left") == 2
    assert "0 of 2 parts passed" in said and "Failed: half, ddp." in said
    assert f"torch {torch.__version__}" in said
