"""A stage with nothing to do returns before anything that takes seconds to import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command
from tiny_study import cell, enter, make_table

from pipeline import files, stages, tune
from pipeline.regression import training

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


def pretend_done(stage: str, *made: Path) -> None:
    """As if the stage had come to its end."""
    for path in made:
        files.write_json(path, {})
    files.write_json(cell("mnvi").state(stage) / stages.DONE, stages._account(cell("mnvi"), stage))


def test_stages_that_are_done_import_nothing_heavy() -> None:
    one = cell("mnvi")
    tune.leave_unsearched(one)
    pretend_done("train", one.model / "training.json")
    made = [one.plots / "curves.json", one.evaluate / "scores.json", one.evaluate / "metrics.json"]
    pretend_done("evaluate", *made)
    for stage in ("train", "evaluate"):
        assert imported(f"pipeline.{stage}", one.name) == ""


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
