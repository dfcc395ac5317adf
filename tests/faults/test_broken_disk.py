"""A disk that is full or read-only: every stage says so, leaves nothing half-written, and finishes once there is room.

One study goes through its stages. Each is stopped three times: the disk is full, the disk is read-only, and there is
room for the state that a stage resumes from but not for its outputs.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from commands import command
from image_study import make_cell, make_job
from small_disk import SmallDisk, mounted
from tiny_study import write_params

from pipeline import files, params, searching
from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.images import search as image_search
from pipeline.images import workers
from pipeline.regression import cell_networks, folds, search

pytestmark = pytest.mark.slow

CELL = "tiny-mnvi"
RATES = [0.05, 0.001]
STAGES = {"prepare": "tiny", "tune": CELL, "train": CELL, "evaluate": CELL, "report": None}
MAKES = {
    "prepare": "data/tiny",
    "tune": f"results/tune/{CELL}/trials.json",
    "train": f"results/models/{CELL}/replicas.pt",
    "evaluate": f"results/evaluate/{CELL}/scores.json",
    "report": "results/report",
}


def write_study() -> None:
    numbers = np.random.default_rng(0)
    x = numbers.normal(3.0, 2.0, (60, 4))
    y = x @ [1.0, -2.0, 0.5, 0.0] + numbers.normal(0, 0.5, 60)
    np.savetxt("table.csv", np.column_stack([x, y]), delimiter=",")
    cells = {CELL: {"experiment": "tiny", "data": "tiny", "method": "mnvi"}}
    write_params(Path("params.yaml"), grid={"learning_rate": RATES}, cells=cells, search=[CELL])
    settings = yaml.safe_load(Path("params.yaml").read_text())
    settings["datasets"]["tiny"] = {"kind": "table", "file": "table.csv", "target": 4, "splits": "kfold", "folds": 2}
    Path("params.yaml").write_text(yaml.safe_dump(settings))


def contents(folder: str = ".") -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@dataclass
class Walk:
    """What became of each stage."""

    stopped: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)  # stage, fault: code, words
    left: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # files that a fault changed or added
    finished: dict[str, tuple[int, str]] = field(default_factory=dict)
    tracked: dict[str, list[list[str]]] = field(default_factory=dict)  # states of the stage's runs: stopped, finished


def run(stage: str) -> tuple[int, str]:
    given = STAGES[stage]
    return command(stage, *([given] if given else []))


def states(stage: str) -> list[str]:
    with closing(sqlite3.connect("../mlflow.db")) as database:
        rows = database.execute("SELECT status FROM runs WHERE name LIKE ?", (f"{stage}%",)).fetchall()
    return [status for (status,) in rows]


@pytest.fixture(scope="module")
def walk(ray_is_up: None, new_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    top = tmp_path_factory.mktemp("broken_disk")
    shutil.copy(new_store, top / "mlflow.db")
    found = Walk()
    with (
        pytest.MonkeyPatch.context() as patch,
        mounted(top / "study") as disk,
        mounted(top / "study" / "results") as results,
    ):
        patch.chdir(top / "study")
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{top}/mlflow.db")
        write_study()
        for stage in STAGES:
            go(found, stage, disk, results)
        yield found
        patch.chdir(top)


def go(found: Walk, stage: str, disk: SmallDisk, results: SmallDisk) -> None:
    """Breaks a stage in every way, then lets it finish."""
    faults = {"full": [disk.full, results.full], "read-only": [disk.read_only, results.read_only]}
    if stage != "prepare":  # whose own state and what it makes are on one disk
        faults["results full"] = [results.full]
    for fault, causes in faults.items():
        before = contents()
        with ExitStack() as broken:
            for cause in causes:
                broken.enter_context(cause())
            found.stopped[stage, fault] = run(stage)
        after = contents()
        found.left[stage, fault] = {path for path in after if before.get(path) != after[path]}
    stopped = states(stage)
    found.finished[stage] = run(stage)
    found.tracked[stage] = [stopped, states(stage)]


KINDS = ("full", "read-only", "results full")
FAULTS = [(stage, fault) for stage in STAGES for fault in KINDS if (stage, fault) != ("prepare", "results full")]


@pytest.mark.parametrize("stage, fault", FAULTS)
def test_a_stage_that_cannot_write_says_what_where_and_what_to_do(walk: Walk, stage: str, fault: str) -> None:
    code, said = walk.stopped[stage, fault]
    error = said[said.index("error: ") :]
    assert code == 1 and "Traceback" not in said
    assert ("Read-only file system" if fault == "read-only" else "No space left on device") in error
    assert "free some space or make its folder writable, then run the same command again" in error
    first = {"prepare": "data/tiny", "report": "results/report"}.get(stage, "work/")  # what is written first
    assert error.startswith(f"error: {MAKES[stage] if fault == 'results full' else first}")


@pytest.mark.parametrize("stage, fault", FAULTS)
def test_nothing_is_half_written(walk: Walk, stage: str, fault: str) -> None:
    left = walk.left[stage, fault]
    assert not [path for path in left if path.endswith(".tmp")]
    assert not [path for path in left if not path.startswith("work/")]
    if fault != "results full":
        assert not left


@pytest.mark.parametrize("stage", STAGES)
def test_with_room_the_same_command_finishes(walk: Walk, stage: str) -> None:
    assert walk.finished[stage][0] == 0, walk.finished[stage][1]
    assert Path(MAKES[stage]).exists()


@pytest.mark.parametrize("stage", ["tune", "train", "evaluate"])
def test_the_run_that_failed_is_the_one_that_finishes(walk: Walk, stage: str) -> None:
    stopped, finished = walk.tracked[stage]
    assert "FAILED" in stopped and set(stopped) <= {"FAILED", "FINISHED"}  # finished are the trials of the search
    assert len(finished) == len(stopped) and set(finished) == {"FINISHED"}


def test_a_search_ends_with_what_it_would_have_found_undisturbed(walk: Walk) -> None:
    cell = params.load().cell(CELL)
    table, tests = folds.load(cell)
    parts = folds.validation_folds(table, tests)
    for trial in files.read_json(cell.tune / "trials.json", "tune"):
        one = searching.short(cell.with_hyperparameters(trial["hyperparameters"]))
        assert trial["objective"] == pytest.approx(search.objective(one, parts), rel=1e-6)
    assert files.read_yaml(cell.tune / "best.yaml", "tune")["trials"] == len(RATES)


def test_training_ends_with_the_weights_it_would_have_had_undisturbed(walk: Walk) -> None:
    cell = params.load().cell(CELL).tuned()
    table, tests = folds.load(cell)
    found = files.read_tensors(cell.model / "replicas.pt", "train")["state"]
    undisturbed = cell_networks.train(cell, cell_networks.plan(cell, 2, 2), folds.test_folds(table, tests)).state
    for name, values in undisturbed.items():
        assert torch.equal(found[name], values), name


@pytest.mark.parametrize("stage", ["prepare", "evaluate", "report"])
def test_another_run_of_the_stage_makes_the_same(walk: Walk, stage: str) -> None:
    folder = Path(MAKES[stage]) if stage != "evaluate" else Path(MAKES[stage]).parent
    before = contents(str(folder))
    files.remove(folder)
    assert run(stage)[0] == 0
    assert contents(str(folder)) == before


def test_a_trial_without_room_for_its_checkpoint_is_no_failed_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = make_cell("deterministic", experiment={"epochs": 1, "milestones": []})
    state = cell.state("tune").absolute()
    with mounted(tmp_path / "work") as disk:
        state.mkdir(parents=True)
        with disk.full(), pytest.raises(StudyError, match=r"checkpoint-\S+: cannot be written \(No space left"):
            image_search.train_trial({}, cell, state, jobs.data_of(cell), 1)
        assert not image_search.ended(state) and not [path for path in contents("work") if "checkpoint" in path]


def test_training_of_images_goes_on_once_there_is_room_for_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = make_cell("deterministic", experiment={"epochs": 2, "milestones": []})
    undisturbed = workers.alone(replace(make_job(cell), state=tmp_path / "undisturbed"), lambda epoch: None)
    with mounted(tmp_path / "work", megabytes=80) as disk:
        with disk.full(), pytest.raises(StudyError, match=r"checkpoint-\S+: cannot be written \(No space left"):
            workers.alone(make_job(cell), lambda epoch: None)
        found = workers.alone(make_job(cell), lambda epoch: None)
    for name, values in undisturbed.best_weights.items():
        assert torch.equal(found.best_weights[name], values), name
