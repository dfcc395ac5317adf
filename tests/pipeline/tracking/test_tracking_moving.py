"""The machine that submitted a job sends MLflow what the job could not send."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import PATIENCE
from tracking_cases import Cell, client, history, runs

import mnvi
from pipeline import files, storage, tracking
from pipeline.submission import inside
from pipeline.submission.submitting import Submission
from pipeline.tracking import identity, moving, sender
from pipeline.tracking.spool import Spool

STATE = Path("work/results/train/toy")
JOB = "results/train/toy/0123"
CELL: Any = SimpleNamespace(name="toy", model=Path("results/models/toy"), study=SimpleNamespace(results="results"))

pytestmark = pytest.mark.usefixtures("folder")


def away(self: sender.Courier) -> None:
    raise ConnectionError("nobody is there")


@pytest.mark.parametrize("job", (JOB, None))
def test_an_attempt_that_finds_nothing_of_a_killed_one_goes_on_in_its_run(
    monkeypatch: pytest.MonkeyPatch, job: str | None
) -> None:
    """Only in a job: elsewhere nothing tells a lost folder from a stage that is run anew."""
    if job is not None:
        monkeypatch.setenv(identity.JOB, job)
    killed = tracking.run(Cell(), "train", state=STATE)
    with killed as parent, tracking.run(Cell(), "train", child="seed 0", parent=parent, state=STATE / "0") as child:
        child.metrics({"loss": 1.0}, 1)
    files.remove("work")
    with (
        tracking.run(Cell(), "train", state=STATE) as parent,
        tracking.run(Cell(), "train", child="seed 0", parent=parent, state=STATE / "0") as child,
    ):
        child.metrics({"loss": 1.0}, 1)
        child.metrics({"loss": 0.5}, 2)
    found = runs()
    assert len(found) == (2 if job else 4)
    if job:
        assert history(found[1].info.run_id, "loss") == [(1, 1.0), (2, 0.5)]


def test_a_store_that_made_a_run_but_did_not_answer_makes_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, made = identity._create, threading.Event()

    def unheard(*arguments: Any) -> str:
        asked(*arguments)
        made.set()
        raise ConnectionError("the line went dead")

    monkeypatch.setattr(identity, "_create", unheard)
    with tracking.run(Cell(), "train", state=STATE) as run:
        run.metrics({"loss": 1.0}, 0)
        assert made.wait(PATIENCE) and not run.flush(0)
        monkeypatch.setattr(identity, "_create", asked)
    assert tracking.send(Path("work")) == []
    assert [run.info.status for run in runs()] == ["FINISHED"]


def test_runs_of_a_job_arrive_once_with_their_artifacts_and_models(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    monkeypatch.setenv("MNVI_STORAGE", str(folder / "storage"))
    monkeypatch.setenv("MNVI_TRACKING_WAIT", "0")
    monkeypatch.setenv(inside.INPUTS, "{}")
    monkeypatch.setenv(identity.JOB, JOB)
    for place in ("job", "study"):
        (folder / place).mkdir()
    monkeypatch.chdir(folder / "job")
    with tracking.run(Cell(), "evaluate", state=STATE) as parent:
        parent.metrics({"loss": 1.0}, 0)
        assert parent.flush(PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(sender.Courier, "deliver", away)
            with tracking.run(Cell(), "evaluate", child="seed 0", parent=parent, state=STATE / "seed-0") as child:
                child.metrics({"loss": 2.0}, 0)
            parent.metrics({"loss": 0.5}, 1)
            files.write_json(CELL.model / "training.json", {})
            parent.artifact(CELL.model / "training.json")
            tracking.model(parent, mnvi.methods.build("mnvi", mnvi.models.mlp(3, 5)), Cell(), torch.randn(2, 3))
            parent.close()
    inside.deliver(CELL, "train")
    assert not list(sender.leftovers(Path("work"))), "the cell's next job would send it, too"

    monkeypatch.chdir(folder / "study")
    files.remove(folder / "job")
    root = storage.of("the test")
    submission = Submission(CELL, "train", "params.yaml", root, "0123", {})
    assert submission.job == JOB
    submission.bring()
    assert len(list(sender.leftovers(Path("work")))) == 2
    assert tracking.send(Path("work")) == []
    files.remove("work")
    submission.bring()
    assert tracking.send(Path("work")) == []

    above, below = runs()
    assert [above.info.status, below.info.status] == ["FINISHED", "FINISHED"]
    assert below.data.tags["mlflow.parentRunId"] == above.info.run_id
    assert history(above.info.run_id, "loss") == [(0, 1.0), (1, 0.5)]
    assert history(below.info.run_id, "loss") == [(0, 2.0)]
    assert [file.path for file in client().list_artifacts(above.info.run_id)] == ["training.json"]
    assert client().get_model_version_by_alias("toy-mnvi", "best").run_id == above.info.run_id


@pytest.mark.parametrize("there", [True, False])
def test_a_model_that_an_earlier_attempt_saved_is_taken_along_if_it_is_there(there: bool) -> None:
    identity.claim(STATE, "toy", "train mnvi", None)
    Spool(STATE).append([{"kind": "model", "folder": "/gone/model-ab", "name": "toy-mnvi"}])
    if there:
        files.write_json(STATE / "model-ab/settings.json", {})
    assert moving.pack(Path("work"), Path("unsent"), Path("work/jobs/1")) == [STATE]
    inside_work = STATE.relative_to("work")
    (entry,) = Spool("unsent" / inside_work).read(0)
    assert entry.record["folder"] == (f"work/jobs/1/{inside_work}/model-ab" if there else "/gone/model-ab")
    assert ("unsent" / inside_work / "model-ab/settings.json").exists() is there
