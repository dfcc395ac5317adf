"""All cells of a study at a time, on a cluster that is made up here; test_submitted_jobs.py has a real one."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from remote_study import enter, make_cells

from pipeline import stage_files, storage
from pipeline.errors import StudyError
from pipeline.params import Cell
from pipeline.submission import everything, follow, server
from pipeline.submission.submitting import Submission


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch)


class Cluster:
    """A job server whose jobs end one look after they were submitted, and write the outputs that DVC expects."""

    def __init__(self, cpus: list[float], fails: str = "never") -> None:
        self.cpus, self.fails = cpus, fails
        self.jobs: list[Any] = []
        self.together: list[int] = []  # jobs that ran at each look
        self.submitted: list[str] = []

    def list_jobs(self) -> list[Any]:
        return list(self.jobs)

    def start(self, one: Submission) -> str:
        name = f"{one.cell.name}-{one.stage}"
        status = SimpleNamespace(value="RUNNING", is_terminal=lambda: status.value != "RUNNING")
        self.jobs.append(SimpleNamespace(submission_id=name, status=status, metadata={}, one=one))
        self.submitted.append(name)
        return name

    def pause(self, seconds: float) -> None:
        running = [job for job in self.jobs if job.status.value == "RUNNING"]
        self.together.append(len(running))
        for job in running:
            job.status.value = "FAILED" if self.fails in job.submission_id else "SUCCEEDED"
            if job.status.value == "SUCCEEDED":
                for path in stage_files.outputs(job.one.cell, job.one.stage):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    file = path / "training.json" if path.suffix == "" else path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text("{}")
                storage.write_json(job.one.root / "outputs" / f"{job.one.job}.json", {})

    def get_job_logs(self, name: str) -> str:
        return "first line\nerror: the disk is full\n"


@pytest.fixture
def pretend(study: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def there_is(cluster: Cluster) -> Cluster:
        monkeypatch.setattr(server, "connect", lambda: cluster)
        monkeypatch.setattr(server, "nodes", lambda client: [{"CPU": cpus} for cpus in cluster.cpus])
        monkeypatch.setattr(Submission, "start", lambda one, client: cluster.start(one))
        monkeypatch.setattr(Submission, "bring", lambda one: None)
        monkeypatch.setattr(time, "sleep", cluster.pause)
        return cluster

    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    monkeypatch.setenv("MNVI_STORAGE", str(study / "storage"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    return there_is


def stages_of(cell: Cell) -> list[str]:
    return [f"{cell.name}-{stage}" for stage in (["tune"] if cell.searched else []) + ["train", "evaluate"]]


def test_every_stage_of_every_cell_runs_once_in_its_order(pretend: Any) -> None:
    cells, cluster = make_cells(2, 2), pretend(Cluster([1.0, 1.0]))
    everything.submit(cells, "params.yaml", at_a_time=8)
    assert sorted(cluster.submitted) == sorted(name for cell in cells for name in stages_of(cell))
    for cell in cells:
        assert [name for name in cluster.submitted if name.startswith(f"{cell.name}-")] == stages_of(cell)
    assert max(cluster.together) == 2, "two CPUs have room for two cells"
    everything.submit(cells, "params.yaml", at_a_time=8)
    assert len(cluster.submitted) == len(set(cluster.submitted)), "something was submitted twice"


@pytest.mark.parametrize(
    ("cpus", "workers", "at_a_time", "together"),
    [([2.0, 2.0], 1, 8, 3), ([2.0, 2.0], 1, 2, 2), ([2.0, 2.0], 2, 8, 2), ([], 1, 8, 1), ([0.0, 1.0], 1, 8, 1)],
    ids=["room for all", "fewer are wanted", "two workers each", "no node yet", "a head without CPUs"],
)
def test_as_many_run_at_a_time_as_there_is_room_for(
    pretend: Any, cpus: list[float], workers: int, at_a_time: int, together: int
) -> None:
    cells, cluster = make_cells(3, 0, resources={"workers": workers}), pretend(Cluster(cpus))
    everything.submit(cells, "params.yaml", at_a_time)
    assert max(cluster.together) == together


def test_one_cell_that_fails_does_not_keep_the_others(pretend: Any) -> None:
    cells, cluster = make_cells(3, 0), pretend(Cluster([1.0], fails="lenet-mc_dropout-train"))
    with pytest.raises(StudyError, match=r"(?s)lenet-mc_dropout-train is failed; .*the disk is full.*same command"):
        everything.submit(cells, "params.yaml", at_a_time=8)
    assert "lenet-mnvi-evaluate" in cluster.submitted and "lenet-mc_dropout-evaluate" not in cluster.submitted


def test_a_job_that_runs_already_is_not_started_again(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,), cluster = make_cells(1, 0), pretend(Cluster([1.0]))
    one = everything._next(cell, "params.yaml")
    assert one is not None
    name = cluster.start(one)
    monkeypatch.setattr(Submission, "running", lambda one, client: name if one.stage == "train" else None)
    everything.submit([cell], "params.yaml", at_a_time=8)
    assert cluster.submitted == ["lenet-deterministic-train", "lenet-deterministic-evaluate"]


def test_ctrl_c_leaves_the_jobs_and_names_them(
    pretend: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(Cluster([1.0, 1.0]))
    monkeypatch.setattr(time, "sleep", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        everything.submit(make_cells(2, 0), "params.yaml", at_a_time=8)
    assert "lenet-deterministic-train, lenet-mnvi-tune: continue without us" in capsys.readouterr().err


def test_a_cluster_to_join_is_no_job_server(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with pytest.raises(StudyError, match=r"RAY_ADDRESS=head:6379: names no job server"):
        everything.submit(make_cells(1, 0), "params.yaml", at_a_time=8)


def test_a_server_that_goes_away_while_cells_are_submitted_gets_them_later(
    pretend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, cluster = make_cells(2, 0), pretend(Cluster([1.0]))
    there = Mock(side_effect=[ConnectionError("gone"), ConnectionError("gone"), *[[{"CPU": 1.0}]] * 99])
    monkeypatch.setattr(server, "nodes", there)
    everything.submit(cells, "params.yaml", at_a_time=8)
    assert sorted(cluster.submitted) == sorted(name for cell in cells for name in stages_of(cell))


def test_a_server_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PAUSE", 0.0)
    client = Mock(list_jobs=Mock(side_effect=[ConnectionError("gone"), [SimpleNamespace(submission_id="one")]]))
    assert list(everything._jobs(client)) == ["one"]
    monkeypatch.setattr(follow, "PATIENCE", 0.0)
    client.list_jobs = Mock(side_effect=ConnectionError("gone"))
    with pytest.raises(StudyError, match=r"has not answered for 0 s \(gone\); its jobs may still be running"):
        everything._jobs(client)
