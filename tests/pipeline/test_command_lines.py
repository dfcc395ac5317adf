"""Every command says what it does, with examples, and refuses wrong arguments with one line."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "evaluate",
    "new",
    "params",
    "peers",
    "predict",
    "prepare",
    "report",
    "serve",
    "state",
    "tracking",
    "train",
    "tune",
]


def test_all_commands_are_tried():
    found = [path for path in (ROOT / "pipeline").rglob("*.py") if "console.run(main)" in path.read_text()]
    names = {path.parent.name if path.stem == "__main__" else path.stem for path in found}
    assert names == set(COMMANDS)


def main_of(command):
    module = importlib.import_module(f"pipeline.{command}")
    return module.main if hasattr(module, "main") else importlib.import_module(f"pipeline.{command}.__main__").main


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_exit_codes(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [command, "--help"])
    with pytest.raises(SystemExit) as stopped:
        main_of(command)()
    text = capsys.readouterr().out
    usage, _, rest = text.partition("\n\n")
    assert stopped.value.code == 0
    assert usage.startswith(f"usage: python -m pipeline.{command}") and f"python -m pipeline.{command} " in rest
    assert "exit codes:" in rest


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_arguments_are_refused_in_one_line(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [command, "--no-such-option"])
    with pytest.raises(SystemExit) as stopped:
        main_of(command)()
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]
