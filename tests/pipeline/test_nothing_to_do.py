"""A stage with nothing to do returns before anything that takes seconds to import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import command
from tiny_study import cell, enter, make_table

from pipeline import files, params, stages, tune
from pipeline.done import Account
from pipeline.regression import training
from pipeline.report import __main__ as report

HEAVY = ("torch", "ray", "mlflow", "optuna", "matplotlib")
PROBE = f"""
import atexit, runpy, sys
atexit.register(lambda: print(*(name for name in {HEAVY!r} if name in sys.modules)))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)


def imported(*arguments: str) -> str:
    """What a command has imported of the heavy packages when it ends well."""
    environment = {**os.environ, "PYTHONPATH": str(Path(stages.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("arguments", [["pipeline.tune", "tiny-mnvi"], ["pipeline.params", "settings"]])
def test_what_only_reads_and_writes_settings_imports_nothing_heavy(arguments: list[str]) -> None:
    assert imported(*arguments) == ""


def pretend_done(account: Account, *made: Path) -> None:
    """As if the stage had come to its end."""
    for path in made:
        files.write_json(path, {})
    account.settle()


def test_stages_that_are_done_import_nothing_heavy() -> None:
    one = cell("mnvi")
    tune.leave_unsearched(one)
    pretend_done(stages.account(one, "train"), one.model / "training.json")
    made = [one.plots / "curves.json", one.evaluate / "scores.json", one.evaluate / "metrics.json"]
    pretend_done(stages.account(one, "evaluate"), *made)
    for stage in ("train", "evaluate"):
        assert imported(f"pipeline.{stage}", one.name) == ""
    pretend_done(report.account(params.load()), Path("results/report/index.html"))
    assert imported("pipeline.report") == ""


def test_a_data_set_that_is_prepared_imports_nothing_heavy() -> None:
    own_table(rows=12)
    assert imported("pipeline.prepare", "own") == ""  # prepares it
    assert "prepare own: nothing to do, data/own is up to date" in said("prepare", "own")
    assert imported("pipeline.prepare", "own") == ""


def own_table(rows: int) -> None:
    values = np.random.RandomState(0).normal(size=(rows, 3))
    np.savetxt("own.csv", values, delimiter=",")
    settings = files.read_yaml(Path("params.yaml"), "")
    settings["datasets"]["own"] = {"kind": "table", "file": "own.csv", "target": 2, "splits": "kfold", "folds": 3}
    files.write_yaml(Path("params.yaml"), settings)


def said(*arguments: str) -> str:
    status, text = command(*arguments)
    assert status == 0, text
    return text


def test_a_data_set_is_prepared_until_something_changes() -> None:
    own_table(rows=12)
    for change in (
        lambda: None,
        lambda: own_table(rows=15),
        lambda: files.remove(Path("data/own")),
        lambda: Path("params.yaml").write_text(Path("params.yaml").read_text().replace("folds: 3", "folds: 4")),
    ):
        change()
        assert "nothing to do" not in said("prepare", "own")
        assert "nothing to do" in said("prepare", "own")


def test_a_data_set_that_was_missing_is_looked_for_again() -> None:
    own_table(rows=12)
    settings = files.read_yaml(Path("params.yaml"), "")
    settings["study"]["missing_data"] = "skip"
    settings["datasets"]["own"]["file"] = "later.csv"
    files.write_yaml(Path("params.yaml"), settings)
    for _ in range(2):
        assert "there is no later.csv" in said("prepare", "own")
    Path("own.csv").rename("later.csv")
    said("prepare", "own")
    assert "missing" not in files.read_json(Path("data/own/summary.json"), "")


def test_a_choice_that_is_written_again_does_not_make_training_start_again() -> None:
    one = cell("mnvi")
    command("tune", one.name)
    before = (one.tune / "best.yaml").stat().st_mtime_ns
    assert "tune tiny-mnvi: nothing to do" in said("tune", one.name)
    assert (one.tune / "best.yaml").stat().st_mtime_ns == before


def test_a_stage_is_done_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    one, runs = cell("mnvi"), []
    tune.leave_unsearched(one)

    def train(_: object) -> None:
        runs.append(1)
        files.write_json(one.model / "training.json", {})

    monkeypatch.setattr(training, "run", train)
    assert command("train", one.name)[0] == 0
    status, said = command("train", one.name)
    assert (status, len(runs)) == (0, 1)
    assert "train tiny-mnvi: nothing to do, results/models/tiny-mnvi is up to date; delete it" in said
    for change in (
        lambda: files.remove(one.model),
        lambda: make_table(Path("data/tiny"), rows=61),
        lambda: files.write_yaml(one.tune / "best.yaml", {"hyperparameters": {"prior_variance": 3.0}}),
        lambda: Path("params.yaml").write_text(Path("params.yaml").read_text().replace("runs: 2", "runs: 3")),
    ):
        before = len(runs)
        change()
        assert command("train", one.name)[0] == 0
        assert len(runs) == before + 1
