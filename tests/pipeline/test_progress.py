"""What stages show: a bar on a terminal, a line elsewhere, and nothing of Ray's own in either place."""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import termios
import threading
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
from commands import command
from tiny_study import add_photos, make_study

pytestmark = pytest.mark.slow

CELL = "tiny-deterministic"
COMMANDS = {
    "prepare": ("photos",),
    "tune": (CELL,),
    "train": (CELL,),
    "evaluate": (CELL,),
    "report": (),
}
BARS = {
    "prepare": ("photos", "images"),
    "tune": (f"tune {CELL}", "trials"),
    "train": (f"train {CELL}", "network epochs"),
    "evaluate": (f"evaluate {CELL}", "predictions"),
    "report": ("report", "figures"),
}


def write_study() -> None:
    cells = {CELL: {"experiment": "tiny", "data": "tiny", "method": "deterministic"}}
    make_study(Path.cwd(), grid={"learning_rate": [0.05, 0.01]}, cells=cells, search=[CELL])
    add_photos(classes=2, images=3)


def on_a_terminal(stage: str) -> str:
    """Everything that a person was ever shown."""
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, 120))  # without a size, a bar has no room
    parts: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # Linux's word for the other end having been closed
            while part := os.read(reader, 4096):
                parts.append(part)

    thread = threading.Thread(target=read)
    thread.start()
    with os.fdopen(writer, "w") as terminal, redirect_stdout(terminal):
        code, _ = command(stage, *COMMANDS[stage], stderr=terminal)
    thread.join()
    os.close(reader)
    shown = b"".join(parts).decode()
    assert code == 0, shown
    return shown


def in_a_pipe(stage: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        code, said = command(stage, *COMMANDS[stage])
    assert code == 0, said
    return printed.getvalue() + said


@pytest.fixture(scope="module")
def shown(ray_is_up: None, new_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for place, show in (("terminal", on_a_terminal), ("pipe", in_a_pipe)):
            monkeypatch.chdir(tmp_path_factory.mktemp(place))
            shutil.copy(new_store, "mlflow.db")
            write_study()
            found[place] = {stage: show(stage) for stage in COMMANDS}
    return found


@pytest.mark.parametrize("stage", COMMANDS)
def test_a_terminal_shows_a_bar(shown: dict[str, dict[str, str]], stage: str) -> None:
    what, unit = BARS[stage]
    bars = [part for part in shown["terminal"][stage].split("\r") if part.startswith(f"{what}:")]
    assert any("%|" in bar and unit in bar for bar in bars), shown["terminal"][stage]


@pytest.mark.parametrize("stage", COMMANDS)
def test_elsewhere_there_is_a_line_about_it(shown: dict[str, dict[str, str]], stage: str) -> None:
    what, unit = BARS[stage]
    text = shown["pipe"][stage]
    assert "\r" not in text
    # Where the report is; networks that lose against least squares; what takes a while before the first step.
    others = ("report: results", "warning: ", "starting Ray")
    lines = [line for line in text.splitlines() if not line.startswith(others)]
    assert all(re.match(rf"{what}: \d+/\d+ {unit}", line) for line in lines), text  # one a minute
    assert re.match(rf"{what}: (\d+)/\1 {unit}", lines[-1]), text


@pytest.mark.parametrize("place", ["terminal", "pipe"])
def test_ray_shows_nothing_of_its_own(shown: dict[str, dict[str, str]], place: str) -> None:
    text = shown[place]["tune"] + shown[place]["train"]
    assert not [
        word for word in ("Configuration for experiment", "View detailed results", "Trial status") if word in text
    ]
