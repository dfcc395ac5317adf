"""A tracking server that goes away: nothing waits for it, nothing is lost, nothing comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from commands import PATIENCE
from tracking_cases import Cell, client, history, runs

import mnvi
from pipeline import tracking
from pipeline.tracking import identity
from pipeline.tracking.spool import Spool
from tools.ray_nodes import free_port
from tools.servers import wait_until_it_answers

ROOT = Path(__file__).parents[3]
STATE = Path("work/results/tune/toy-mnvi")
pytestmark = pytest.mark.usefixtures("folder")


@contextmanager
def server(port: int, *command: str, path: str = "/health") -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command of MLflow until it answers, and kills it with all its processes at the end."""
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"  # MLflow calls uvicorn by its name
    with open("server.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *command, "--host", "127.0.0.1", "--port", str(port)],
            start_new_session=True,
            stdout=log,
            stderr=log,
            env=environment,
        )
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}{path}", process, Path("server.log"))
        yield process
    finally:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


TRACKING = (
    "server",
    "--backend-store-uri",
    "sqlite:///mlflow.db",
    "--artifacts-destination",
    "served",
    "--workers",
    "1",
)


@pytest.mark.slow
def test_metrics_survive_a_server_that_is_killed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("MNVI_TRACKING_WAIT", "2")  # at the end of the run, when there is no server any more
    Path("note.txt").write_text("hello")
    with tracking.run(Cell(), "tune", state=STATE) as parent:
        parent.params({"epochs": 4})
        assert parent.id is None  # nobody is there yet to give one
        with (
            server(port, *TRACKING),
            tracking.run(Cell(), "tune", child="0", parent=parent, state=STATE / "0") as child,
        ):
            for step in range(50):
                child.metrics({"loss": 1.0 / (step + 1)}, step)
            assert child.flush(PATIENCE)
            assert len(history(child.id, "loss")) == 50
        began = time.monotonic()
        with tracking.run(Cell(), "tune", child="1", parent=parent, state=STATE / "1") as other:
            other.metrics({"loss": 7.0}, 0)
            net = mnvi.methods.build("mnvi", mnvi.models.mlp(3, 5))
            tracking.model(other, net, Cell(), torch.randn(2, 3))
        with tracking.resume(STATE / "0") as child:
            for step in range(50, 2000):
                child.metrics({"loss": 1.0 / (step + 1)}, step)
        parent.artifact("note.txt")
        assert time.monotonic() - began < 20
        assert "they are kept in work" in capfd.readouterr().err
        with server(port, *TRACKING):
            assert parent.flush(PATIENCE)
            assert tracking.send(Path("work")) == []
            assert [file.path for file in client().list_artifacts(parent.id)] == ["note.txt"]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
        assert history(child.id, "loss") == [(step, 1.0 / (step + 1)) for step in range(2000)]
        assert history(other.id, "loss") == [(0, 7.0)]
        assert len(runs()) == 3
        assert client().get_model_version_by_alias("toy-mnvi", "best").run_id == other.id
        assert client().get_run(parent.id).data.params == {"epochs": "4"}


def test_without_a_server_work_goes_on_and_says_so_without_the_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:hunter2@127.0.0.1:{free_port()}")
    monkeypatch.setenv("MNVI_TRACKING_WAIT", "1")
    began = time.monotonic()
    with tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"loss": 1.0}, 0)
        run.params({"uri": os.environ["MLFLOW_TRACKING_URI"]})
    assert time.monotonic() - began < 10
    said = capsys.readouterr().err
    assert "kept in" in said
    assert "python -m pipeline.tracking send" in said
    written = "".join(path.read_text() for path in STATE.iterdir())
    assert "***@127.0.0.1" in written
    assert "hunter2" not in said + written


def test_what_was_left_over_is_sent_by_the_next_stage() -> None:
    identity.claim(STATE, "toy", "tune mnvi", None)
    Spool(STATE).append([{"kind": "metric", "key": "loss", "value": 1.0, "step": 0, "time": 1}])
    with tracking.run(Cell(), "evaluate", state=Path("work/results/evaluate/toy-mnvi")):
        pass
    assert {found.info.run_name for found in runs()} == {"tune mnvi", "evaluate mnvi"}
    assert history(tracking.resume(STATE).id, "loss") == [(0, 1.0)]


def test_what_was_left_over_of_a_finished_stage_is_kept_when_the_stage_runs_again() -> None:
    with tracking.run(Cell(), "evaluate", state=STATE) as first:
        first.metrics({"loss": 1.0}, 0)
    old = first.id
    records = [{"kind": "metric", "key": "loss", "value": 0.5, "step": 1, "time": 1}]
    Spool(STATE).append([*records, {"kind": "status", "status": "FINISHED", "time": 1}])
    with tracking.run(Cell(), "evaluate", state=STATE) as second:
        second.metrics({"loss": 2.0}, 0)
    assert second.id != old
    assert history(old, "loss") == [(0, 1.0), (1, 0.5)]
    assert history(second.id, "loss") == [(0, 2.0)]


def test_what_runs_of_other_settings_left_over_arrives_in_them_and_ends_them() -> None:
    child, metric = STATE / "children/0", {"kind": "metric", "key": "loss", "value": 1.0, "step": 0, "time": 2}
    identity.claim(STATE, "toy", "tune mnvi", None, ["before"])
    identity.claim(child, "toy", "tune mnvi 0", STATE)
    for state in (STATE, child):  # killed outright, and the server was away
        Spool(state).append([{"kind": "status", "status": "RUNNING", "time": 1}, metric])
    with tracking.run(Cell(), "tune", state=STATE, depends_on=["after"]) as run:
        ended = {found.info.run_name: found for found in runs() if found.info.status == "KILLED"}
        assert ended.keys() == {"tune mnvi", "tune mnvi 0"}, "they do not wait for this run's end"
    above, below = ended["tune mnvi"], ended["tune mnvi 0"]
    assert below.data.tags["mlflow.parentRunId"] == above.info.run_id != run.id
    assert history(above.info.run_id, "loss") == history(below.info.run_id, "loss") == [(0, 1.0)]
    assert above.info.end_time == below.info.end_time == 2
    assert [found.info.status for found in runs()].count("FINISHED") == 1


@pytest.mark.slow
def test_the_command_sends_what_was_left_over(folder: Path) -> None:
    with tracking.run(Cell(), "tune", state=STATE) as run:
        run.metrics({"loss": 1.0}, 0)
    (STATE / "mlflow-sent.json").unlink()
    with open(STATE / "metrics.jsonl", "a") as file:
        file.write('{"kind": "metric", "key": "loss", "value": 0.5, "step": 1, "time": 1}\n')
    command = [sys.executable, "-m", "pipeline.tracking", "send"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "all records of 1 runs are sent\n"
    assert history(run.id, "loss") == [(0, 1.0), (1, 0.5)]


@pytest.mark.slow
def test_processes_that_open_a_new_store_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "from pipeline import tracking; tracking.prepare()"]
    processes = [subprocess.Popen(command, cwd=empty, env=environment, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        _, complaint = process.communicate(timeout=PATIENCE)
        assert (process.returncode, complaint) == (0, b"")
    assert (empty / "mlflow.db").exists()


def test_mlflow_is_not_loaded_before_it_is_needed() -> None:
    program = "import sys, pipeline.tracking; sys.exit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
