"""The stage itself: its command, its folder that is whole or not there, and going on without a data set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import PATIENCE
from PIL import Image

from pipeline import missing
from pipeline.data.folders import find_folder
from pipeline.data.imagesets import load_images
from pipeline.data.sources import MIRROR, MissingData
from pipeline.data.tablesets import load_table
from pipeline.errors import StudyError
from pipeline.params import Dataset
from pipeline.prepare import prepare

ROOT = Path(__file__).parents[2]


def own_params(folder: Path, datasets: dict[str, Any]) -> None:
    """The project's parameters with further data sets."""
    settings = yaml.safe_load((ROOT / "params.yaml").read_text())
    settings["datasets"] |= datasets
    (folder / "params.yaml").write_text(yaml.safe_dump(settings))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.prepare", *arguments]


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != MIRROR} | {"PYTHONPATH": str(ROOT)}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )


def csv(path: Path) -> Path:
    np.savetxt(path, np.random.RandomState(0).normal(size=(12, 3)), delimiter=",")
    return path


def table(name: str, file: Path) -> Dataset:
    return Dataset(name=name, kind="table", file=str(file), target=2, splits="kfold", folds=3)


@pytest.mark.slow
def test_the_command_prepares_a_table_of_ones_own(tmp_path: Path) -> None:
    entry = {"kind": "table", "file": str(csv(tmp_path / "own.csv")), "target": 2, "splits": "kfold", "folds": 3}
    own_params(tmp_path, {"own": entry})
    done = run(tmp_path, "own")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "data/own").iterdir()) == [
        *("splits.json", "summary.json", "x.npy", "y.npy")
    ]
    assert load_table(tmp_path / "data/own").summary["kind"] == "table"


@pytest.mark.slow
def test_an_error_is_one_message_without_a_traceback(tmp_path: Path) -> None:
    own_params(tmp_path, {"own": {"kind": "table", "folder": "no-such", "splits": "kfold", "folds": 3}})
    for name, words in (("own", "no source has it"), ("bostn", "did you mean boston?")):
        done = run(tmp_path, name)
        assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_missing_data_stop_or_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    absent = table("own", tmp_path / "absent.csv")
    with pytest.raises(MissingData):
        prepare(absent, "stop")
    assert not Path("data").exists()
    prepare(absent, "skip")
    assert "`dvc repro --force --single-item prepare@" in capsys.readouterr().err
    reason = missing.why(Path("data/own"))
    assert reason is not None and "absent.csv" in reason
    with pytest.raises(StudyError, match=r"data/own: the data set is missing: .*absent\.csv"):
        load_table("data/own")
    csv(tmp_path / "absent.csv")
    prepare(absent, "skip")
    assert missing.why(Path("data/own")) is None and len(load_table("data/own").y) == 12


def test_bad_data_are_never_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("1,2,x\n")
    with pytest.raises(StudyError, match="'x' is not a finite number"):
        prepare(table("own", tmp_path / "bad.csv"), "skip")


def test_what_was_there_stays_when_preparing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(table("own", csv(tmp_path / "a.csv")), "stop")
    before = {path.name: path.read_bytes() for path in Path("data/own").iterdir()}
    (tmp_path / "a.csv").write_text("1,2\n3\n")
    with pytest.raises(StudyError):
        prepare(table("own", tmp_path / "a.csv"), "stop")
    assert {path.name: path.read_bytes() for path in Path("data/own").iterdir()} == before
    assert [path.name for path in Path("data").iterdir()] == ["own"]


def test_an_output_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").write_text("in the way")
    with pytest.raises(StudyError, match="data/own: cannot be written"):
        prepare(table("own", csv(tmp_path / "a.csv")), "stop")


def test_the_same_data_give_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents = []
    for _ in range(2):
        prepare(table("own", csv(tmp_path / "a.csv")), "stop")
        contents.append({path.name: path.read_bytes() for path in Path("data/own").iterdir()})
    assert contents[0] == contents[1]


def test_reading_what_was_not_prepared_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(
        StudyError, match=r"summary\.json: no such file; it is made by `python -m pipeline.prepare own`"
    ):
        load_table(tmp_path / "own")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_while_writing_shards_it_goes_on_from_there(tmp_path: Path, how: signal.Signals) -> None:
    noise = np.random.RandomState(0).randint(256, size=(64, 64, 3)).astype(np.uint8)
    for c in range(12):
        for i in range(200):
            path = tmp_path / "photos" / f"n{c:02}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.roll(noise, (c, i), axis=(0, 1))).save(path, compress_level=0)
    entry: dict[str, Any] = {"kind": "folder", "test": str(tmp_path / "photos"), "size": 128}
    own_params(tmp_path, {"stopped": entry})
    process = subprocess.Popen(command("stopped"), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    note = tmp_path / "work/prepare/stopped/test/test-00000.json"
    while process.poll() is None and not note.exists():
        time.sleep(0.001)
    process.send_signal(how)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130}[how]
    assert not (tmp_path / "data/stopped").exists()
    again = run(tmp_path, "stopped")
    assert again.returncode == 0 and "1024 of 2400 images are already written" in again.stderr
    whole = find_folder(Dataset(name="whole", **entry), tmp_path / "whole").summary["digest"]
    assert json.loads((tmp_path / "data/stopped/summary.json").read_text())["digest"] == whole
    assert len(load_images(tmp_path / "data/stopped", "test")) == 2400
