"""Every command says what it does, with examples, and refuses wrong arguments with one line."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from pipeline import console

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
    "submission",
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


MISTAKES = {
    "a misspelt target": ("new good.csv --target prise", 1, "'prise' is not a column of good.csv"),
    "a table without a target": ("new good.csv", 2, "a table needs --target"),
    "a network for a table": ("new good.csv --target price --network resnet20", 2, "--weights are for images"),
    "two columns of one name": ("new twice.csv --target price", 1, "two columns are named 'a'"),
    "words in a table": ("new words.csv --target price", 1, "line 2, column 1 (a): 'x' is not a finite number"),
    "one image": ("new photo.png", 2, "photo.png is one image; name the folder"),
    "an empty folder": ("new empty", 1, "expected one subfolder of images per class"),
    "a misspelt cell": ("train boston-mnvy", 1, "did you mean boston-mnvi?"),
    "data that are not prepared": ("evaluate boston-mnvi", 1, "it is made by `python -m pipeline.prepare boston`"),
    "a misspelt data set": ("prepare bostn", 1, "did you mean boston?"),
    "a study that does not exist": ("params select uc", 1, "did you mean uci?"),
    "another folder": ("params check --params nowhere.yaml", 1, "run this in the project's folder"),
    "broken settings": ("tune boston-mnvi --params broken.yaml", 1, "correct that line"),
    "settings that are a folder": ("tune boston-mnvi --params empty", 1, "it must be a text file"),
    "a share in per cent": ("predict boston-mnvi good.csv --refer 10%", 2, "10% is not a share between 0 and 1"),
    "nothing to predict": ("predict boston-mnvi new.csv", 1, "new.csv: no such file or folder"),
    "peers of a table": ("peers boston-mnvi", 1, "deterministic networks for images"),
    "a report without results": ("report --pages page.md", 1, "give the results folder of a study"),
    "state that is not there": ("state adopt boston-mnvi train/x", 1, "has no such state set aside"),
    "records of nowhere": ("tracking send nowhere", 1, "nowhere: no such folder"),
    "a port out of range": ("serve boston-mnvi --port 99999", 2, "99999 is not a number from 0 to 65535"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder with files that are not in order."""
    place = tmp_path_factory.mktemp("project")
    (place / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    (place / "studies").symlink_to(ROOT / "studies")
    (place / "empty").mkdir()
    (place / "broken.yaml").write_text("study: [1,\n")
    rows = "".join(f"{k % 7},{k % 5},{k}\n" for k in range(50))
    (place / "good.csv").write_text(f"a,b,price\n{rows}")
    (place / "twice.csv").write_text(f"a,a,price\n{rows}")
    (place / "words.csv").write_text("a,price\nx,1\ny,2\n")
    (place / "photo.png").write_bytes(b"")
    return place


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_sentence_and_no_traceback(
    mistake: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, code, sentence = MISTAKES[mistake]
    command, *arguments = line.split()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", [command, *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the tests keep their own handler
    before = sorted(folder.iterdir())
    with pytest.raises(SystemExit) as stopped:
        console.run(main_of(command))
    said = capsys.readouterr().err
    assert stopped.value.code == code and sentence in said and "Traceback" not in said
    assert sorted(folder.iterdir()) == before  # nothing is written
