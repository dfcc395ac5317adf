"""Runs in MLflow's embedded store: what they hold, and that a restart goes on in the same one."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from commands import PATIENCE
from tracking_cases import Cell, client, history, runs

from pipeline import tracking
from pipeline.errors import StudyError
from pipeline.report import provenance
from pipeline.tracking import system

STATE = Path("work/results/train/toy-mnvi")
pytestmark = pytest.mark.usefixtures("folder")


def test_a_run_holds_what_was_said_to_it(folder: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    Path("dvc.lock").write_text("schema: '2.0'\n")
    Path("note.txt").write_text("hello")
    Path("plots").mkdir()
    Path("plots/a.csv").write_text("1")
    with tracking.run(Cell(), "evaluate", state=STATE) as run:
        run.params({"epochs": 3, "kappa": {0: 0.01, 100: 0.1}, "milestones": [1, 2], "note": None})
        run.metrics({"rmse": 0.5, "log_likelihood": -1.5}, step=0)
        run.metrics({"rmse": 0.25}, step=1)
        run.tag({"colour": "red"})
        run.dataset({"name": "yacht", "digest": "ab" * 32, "source": "https://u:p@host/yacht", "rows": 308})
        run.artifact("note.txt", folder="notes")
        run.artifact("plots")
    (found,) = runs()
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "evaluate mnvi"
    assert found.data.params == {
        "epochs": "3",
        "kappa.0": "0.01",
        "kappa.100": "0.1",
        "milestones": "[1, 2]",
        "note": "null",
    }
    assert history(run.id, "rmse") == [(0, 0.5), (1, 0.25)]
    assert found.data.tags["colour"] == "red"
    assert found.data.tags["stage"] == "evaluate"
    assert found.data.tags["method"] == "mnvi"
    assert found.data.tags["mlflow.source.git.commit"] == commit
    assert len(found.data.tags["dvc.lock"]) == 64
    (data,) = found.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("yacht", "ab" * 18)
    assert {tag.key: tag.value for tag in data.tags}["sha256"] == "ab" * 32
    assert "u:p@" not in data.dataset.source
    assert [file.path for file in client().list_artifacts(run.id, "notes")] == ["notes/note.txt"]
    assert [file.path for file in client().list_artifacts(run.id, "plots")] == ["plots/a.csv"]
    assert (folder / "mlartifacts").is_dir()


def test_without_git_the_commit_is_the_one_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("MNVI_COMMIT", "ab" * 20)
    with tracking.run(Cell(), "evaluate", state=STATE):
        pass
    (found,) = runs()
    assert found.info.status == "FINISHED"
    assert found.data.tags["mlflow.source.git.commit"] == "ab" * 20
    assert provenance.commit() == "unknown: not a git repository"


def test_a_failed_run_ends_as_failed_and_goes_on_in_the_same_run() -> None:
    with pytest.raises(StudyError), tracking.run(Cell(), "tune", state=STATE) as first:
        first.params({"a": 1})
        first.metrics({"loss": 1.0}, step=0)
        raise StudyError("the disk of http://me:secret@host is full")
    (found,) = runs()
    assert found.info.status == "FAILED"
    assert found.data.tags["error"] == "StudyError: the disk of http://***@host is full"
    with tracking.run(Cell(), "tune", state=STATE) as second:
        second.params({"a": 1})
        second.metrics({"loss": 1.0}, step=0)
        second.metrics({"loss": 0.5}, step=1)
    assert second.id == first.id
    (found,) = runs()
    assert found.info.status == "FINISHED"
    assert history(second.id, "loss") == [(0, 1.0), (1, 0.5)]


def test_the_error_of_an_attempt_goes_when_the_next_one_ends_well() -> None:
    with pytest.raises(StudyError), tracking.run(Cell(), "tune", state=STATE):
        raise StudyError("the disk is full")
    with tracking.run(Cell(), "tune", state=STATE):
        pass
    assert "error" not in runs()[0].data.tags


def test_a_failed_run_with_other_settings_gets_a_new_run_and_so_do_its_children() -> None:
    def train(learning_rate: float, loss: float) -> None:
        with tracking.run(Cell(), "tune", state=STATE, depends_on=[learning_rate, "data"]) as run:
            run.params({"learning_rate": learning_rate})
            with tracking.run(Cell(), "tune", child="seed 0", parent=run, state=STATE / "seed-0") as child:
                child.metrics({"loss": loss}, step=0)
                if loss > 1:
                    raise StudyError("diverged")

    with pytest.raises(StudyError):
        train(0.1, 9.0)
    train(0.05, 0.5)
    found = runs()
    assert [run.info.status for run in found] == ["FAILED", "FAILED", "FINISHED", "FINISHED"]
    assert [run.data.params.get("learning_rate") for run in found] == ["0.1", None, "0.05", None]
    assert [run.data.metrics.get("loss") for run in found] == [None, 9.0, None, 0.5]


@pytest.mark.parametrize("stopped", [KeyboardInterrupt(), SystemExit(130)])
def test_an_interrupted_run_ends_as_killed(stopped: BaseException) -> None:
    with pytest.raises(type(stopped)), tracking.run(Cell(), "tune", state=STATE):
        raise stopped
    assert [run.info.status for run in runs()] == ["KILLED"]


@pytest.mark.slow
def test_a_run_that_was_killed_outright_goes_on() -> None:
    program = (
        "import os, signal\n"
        "from tracking_cases import Cell\n"
        "from pipeline import tracking\n"
        f"with tracking.run(Cell(), 'tune', state={str(STATE)!r}) as run:\n"
        "    run.metrics({'loss': 3.0}, step=0)\n"
        "    run.flush(300)\n"
        "    run.metrics({'loss': 2.0}, step=1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]
    killed = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{program}"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [run.info.status for run in runs()] == ["RUNNING"]
    with tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"loss": 2.0}, step=1)
        run.metrics({"loss": 1.0}, step=2)
    assert [found.info.status for found in runs()] == ["FINISHED"]
    assert history(run.id, "loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]


def test_a_stage_that_had_finished_gets_a_new_run_and_so_do_its_children() -> None:
    ids = []
    for loss in (0.5, 0.25):
        with tracking.run(Cell(), "evaluate", state=STATE) as run:
            run.metrics({"loss": loss}, step=0)
            for _ in range(2):  # a child that is opened again within its stage is the same
                with tracking.run(Cell(), "evaluate", child="seed 0", parent=run, state=STATE / "seed-0") as child:
                    child.metrics({"loss": loss}, step=0)
        ids.append((run.id, child.id))
        assert history(run.id, "loss") == history(child.id, "loss") == [(0, loss)]
    assert len(runs()) == 4
    parents = {found.info.run_id: found.data.tags.get("mlflow.parentRunId") for found in runs()}
    assert parents == {parent: None for parent, _ in ids} | {child: parent for parent, child in ids}


def test_a_stage_whose_end_dvc_has_not_noted_goes_on_in_its_run() -> None:
    lock, ids = Path("dvc.lock"), []
    for content in ("prepare", "prepare", "prepare, evaluate"):
        lock.write_text(content)
        with tracking.run(Cell(), "evaluate", state=STATE) as run:
            run.metrics({"loss": 0.5}, step=0)
        ids.append(run.id)
        assert history(run.id, "loss") == [(0, 0.5)]
    assert ids[0] == ids[1] != ids[2]
    assert [found.info.status for found in runs()] == ["FINISHED", "FINISHED"]


def test_a_stage_that_is_run_by_hand_with_other_weights_gets_a_new_run() -> None:
    Path("dvc.lock").write_text("prepare")
    for nll in (0.5, 0.1, 0.1):
        with tracking.run(Cell(), "evaluate", state=STATE, depends_on=[f"weights of {nll}"]) as run:
            run.metrics({"nll": nll}, step=0)
    assert [found.data.metrics["nll"] for found in runs()] == [0.5, 0.1]


def test_a_childs_folder_cannot_be_its_parents() -> None:
    with (
        pytest.raises(ValueError, match="a child needs its own folder"),
        tracking.run(Cell(), "tune", state=STATE) as run,
        tracking.run(Cell(), "tune", child="0", parent=run, state=STATE),
    ):
        pass


def test_a_changed_parameter_is_kept_beside_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    for value in (1, 2):
        with pytest.raises(KeyboardInterrupt), tracking.run(Cell(), "tune", state=STATE) as run:
            run.params({"epochs": value})
            raise KeyboardInterrupt
    (found,) = runs()
    assert found.data.params == {"epochs": "1"}
    assert found.data.tags["changed.epochs"] == "2"
    assert "epochs was 1" in capsys.readouterr().err


def test_long_values_are_cut_with_a_note_and_odd_names_made_legal() -> None:
    with tracking.run(Cell(), "tune", state=STATE) as run:
        run.params({"long": "x" * 10_000, "κ/N (per example)": 1, **{f"p{k}": k for k in range(250)}})
        run.metrics({"nll [nats]": 1.0}, step=0)
    (found,) = runs()
    assert len(found.data.params) == 252
    assert len(found.data.params["long"]) == 6000
    assert found.data.params["long"].endswith("… (cut, 10000 characters)")
    assert found.data.params["κ/N _per example_"] == "1"
    assert found.data.metrics == {"nll _nats_": 1.0}


def test_numbers_that_are_not_finite_arrive() -> None:
    with tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"a": math.nan, "b": math.inf, "c": -math.inf}, step=3)
    metrics = runs()[0].data.metrics
    assert math.isnan(metrics["a"])
    assert metrics["b"] > 1e300
    assert metrics["c"] < -1e300


def test_training_is_measured() -> None:
    with tracking.run(Cell(), "train", state=STATE) as run:
        pass
    assert len(history(run.id, "system/cpu_utilization_percentage")) == 1


def test_a_disk_without_room_does_not_end_the_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "EVERY", 0.05)
    room, measured = threading.Event(), threading.Event()

    def metrics(values: dict[str, float], step: int) -> None:
        if not room.is_set():
            room.set()
            raise StudyError("metrics.jsonl: cannot be written (No space left on device)")
        measured.set()

    with system.measuring(Mock(metrics=metrics), time.time()):
        assert measured.wait(PATIENCE)


def test_a_run_deleted_in_the_store_is_made_anew_with_its_whole_history(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), tracking.run(Cell(), "tune", state=STATE) as first:
        first.metrics({"loss": 1.0}, step=0)
        raise KeyboardInterrupt
    old = first.id
    client().delete_run(old)
    with tracking.run(Cell(), "tune", state=STATE) as second:
        second.metrics({"loss": 0.5}, step=1)
    assert second.id != old
    assert history(second.id, "loss") == [(0, 1.0), (1, 0.5)]
    assert "no longer in sqlite" in capsys.readouterr().err


def test_another_store_gets_the_whole_history(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "other.db").write_bytes((folder / "mlflow.db").read_bytes())
    with pytest.raises(KeyboardInterrupt), tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"loss": 1.0}, step=0)
        raise KeyboardInterrupt
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    with tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"loss": 0.5}, step=1)
    assert history(run.id, "loss") == [(0, 1.0), (1, 0.5)]
    assert "beginning a new one in sqlite" in capsys.readouterr().err


def test_a_worker_adds_to_the_drivers_run() -> None:
    with tracking.run(Cell(), "tune", state=STATE) as run:

        def work() -> None:
            with tracking.resume(STATE) as mine:
                for step in range(0, 100, 2):
                    mine.metrics({"loss": float(step)}, step)

        worker = threading.Thread(target=work)
        worker.start()
        for step in range(1, 100, 2):
            run.metrics({"loss": float(step)}, step)
        worker.join()
    assert history(run.id, "loss") == [(step, float(step)) for step in range(100)]


def test_resuming_what_was_never_begun_is_an_error() -> None:
    with pytest.raises(StudyError, match=r"mlflow-run\.json"):
        tracking.resume(STATE)


def test_a_line_that_a_crash_cut_off_is_passed_over() -> None:
    with pytest.raises(KeyboardInterrupt), tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"loss": 1.0}, step=0)
        raise KeyboardInterrupt
    with open(STATE / "metrics.jsonl", "a") as file:
        file.write('{"kind": "metric", "key": "loss", "val')
    with tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"loss": 0.5}, step=1)
    assert history(run.id, "loss") == [(0, 1.0), (1, 0.5)]
    assert runs()[0].info.status == "FINISHED"


def test_after_a_crash_between_sending_and_marking_nothing_is_sent_twice() -> None:
    with pytest.raises(KeyboardInterrupt), tracking.run(Cell(), "tune", state=STATE) as run:
        for step in range(5):
            run.metrics({"loss": float(step), "error": 0.0}, step)
        raise KeyboardInterrupt
    journal, cursor = STATE / "metrics.jsonl", STATE / "mlflow-sent.json"
    cursor.write_text(json.dumps({"run": run.id, "offset": 0}))
    # With other times the store would take them for new: only asking it beforehand helps.
    journal.write_text(re.sub(r'"time": \d+', '"time": 1', journal.read_text()))
    with tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"loss": 5.0}, 5)
    assert history(run.id, "loss") == [(step, float(step)) for step in range(6)]
    assert history(run.id, "error") == [(step, 0.0) for step in range(5)]


def test_an_experiment_that_was_deleted_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tracking.run(Cell(), "tune", state=STATE):
        pass
    client().delete_experiment(client().get_experiment_by_name("toy").experiment_id)
    monkeypatch.setenv("MNVI_TRACKING_WAIT", "0.5")
    with tracking.run("toy", "report", state=Path("work/results/report")):
        pass
    assert "experiment 'toy' was deleted" in capsys.readouterr().err


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns"])
def test_a_folder_is_no_store(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(StudyError, match="MLFLOW_TRACKING_URI"):
        tracking.prepare()


def test_a_file_that_is_no_database_is_named(folder: Path) -> None:
    (folder / "mlflow.db").write_text("not a database" * 100)
    with pytest.raises(StudyError, match=r"mlflow\.db.*cannot be opened"):
        tracking.prepare()


def test_the_waiting_time_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNVI_TRACKING_WAIT", "soon")
    with pytest.raises(StudyError, match="MNVI_TRACKING_WAIT='soon'"), tracking.run(Cell(), "tune", state=STATE):
        pass
