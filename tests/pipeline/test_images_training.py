"""Training with Ray Train: whole, resumed after every kind of end, and short of machines."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
import ray
import torch
from image_study import make_cell, make_job

from pipeline import files
from pipeline.errors import StudyError
from pipeline.images import search, training, workers
from pipeline.images.checkpoints import Checkpoints
from pipeline.images.job import Job

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5"}
COMMAND = (sys.executable, "-m", "pipeline.train", "lenet")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def undisturbed(job: Job) -> dict[str, torch.Tensor]:
    threads = torch.get_num_threads()
    position = workers.alone(job, lambda epoch: None)
    torch.set_num_threads(threads)
    return position.best_weights


def train_to_the_end() -> None:
    ended = subprocess.run(COMMAND, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr


def worker_of(driver: int) -> int:
    """The process that trains, among the descendants of the driver."""
    parents, workers = dict[int, int](), list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended meanwhile
            status = dict(
                line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line
            )
            parents[int(folder.name)] = int(status["PPid"])
            if b"RayTrainWorker" in (folder / "cmdline").read_bytes():
                workers.append(int(folder.name))
    for worker in workers:
        process = worker
        while process in parents:
            process = parents[process]
            if process == driver:
                return worker
    raise AssertionError("no worker is running")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ("driver killed", "driver interrupted", "worker killed"))
def test_training_that_was_cut_off_ends_as_if_it_had_not_been(victim: str) -> None:
    cell = make_cell("mc_dropout", experiment={"epochs": 15, "milestones": [10]}, limits={"seeds": 1})
    expected = undisturbed(make_job(cell, "undisturbed"))
    search.run(cell)
    job = make_job(cell)
    running = subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True, start_new_session=True)
    checkpoints = Checkpoints(job.state, job.fingerprint)
    deadline = time.monotonic() + 200
    while not checkpoints.paths() and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.02)
    if victim == "worker killed":
        os.kill(worker_of(running.pid), signal.SIGKILL)
    else:
        running.send_signal(signal.SIGKILL if victim == "driver killed" else signal.SIGINT)
    state = checkpoints.load()
    assert state is not None and not state["position"]["finished"]
    _, said = running.communicate(timeout=300)
    if victim == "worker killed":
        assert running.returncode == 0, said
    else:
        assert running.returncode == (-signal.SIGKILL if victim == "driver killed" else 130), said
        assert not (cell.model / "training.json").exists()
        train_to_the_end()
    found = torch.load(cell.model / "seed-0" / "model.pt", weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    history = json.loads((cell.model / "seed-0" / "history.json").read_text())
    assert [epoch["epoch"] for epoch in history] == list(range(1, 16))
    assert tracked_runs() == {"train mc_dropout": "FINISHED", "train mc_dropout seed 0": "FINISHED"}


def tracked_runs() -> dict[str, str]:
    """Name and status of every run; a name that is there twice fails."""
    with closing(sqlite3.connect("mlflow.db")) as database:
        found = database.execute("SELECT name, status FROM runs").fetchall()
    runs = dict(found)
    assert len(runs) == len(found)
    return runs


@pytest.mark.slow
def test_every_seed_is_trained_once_tracked_and_written() -> None:
    cell = make_cell("deterministic", experiment={"epochs": 2})
    search.run(cell)
    training.run(cell)
    summary = json.loads((cell.model / "training.json").read_text())
    assert summary["seeds"] == 2 and summary["epochs"] == 2 and summary["steps"] == 3 and summary["complete"]
    written = [torch.load(cell.model / f"seed-{seed}" / "model.pt", weights_only=True) for seed in range(2)]
    for seed, weights in enumerate(written):
        expected = undisturbed(make_job(cell, f"undisturbed-{seed}", seed))
        assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert not torch.equal(written[0]["fc2.weight"], written[1]["fc2.weight"])
    names = {"train deterministic", "train deterministic seed 0", "train deterministic seed 1"}
    assert tracked_runs() == dict.fromkeys(names, "FINISHED")

    files.remove(cell.model)  # as DVC does before it runs a stage
    before = time.monotonic()
    training.run(cell)
    again = torch.load(cell.model / "seed-1" / "model.pt", weights_only=True)
    assert all(torch.equal(again[name], value) for name, value in written[1].items())
    trained = [path.stat().st_mtime for path in cell.state("train").glob("seed-*/checkpoint-*.pt")]
    assert trained and max(trained) < time.time() - (time.monotonic() - before)


@pytest.mark.slow
def test_workers_that_cannot_be_had_and_a_loss_that_diverges_are_said_before_giving_up() -> None:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        greedy = {"workers": 3}
        with pytest.raises(StudyError, match="3 workers need 3 CPU, but the cluster has 2 CPU"):
            workers.affordable(make_cell(resources=greedy))
        assert workers.affordable(make_cell(resources={**greedy, "allow_fewer_workers": True})) == (2, 1)
        assert workers.affordable(make_cell()) == (1, 2)
        recipe = {"optimizer": "sgd", "learning_rate": 1e30, "clip": None, "weight_decay": 0.0}
        cell = make_cell("deterministic", experiment=recipe, limits={"seeds": 1})
        search.run(cell)
        with pytest.raises(StudyError, match=r"loss became .* in epoch 1, step 2; there is no checkpoint yet"):
            training.run(cell)
    finally:
        ray.shutdown()
