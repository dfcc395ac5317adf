"""The search and the training of images, stopped during an epoch, resume and end as if nothing had happened."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import command, disturb, tracked, ways
from image_study import make_cell, make_job, searched, undisturbed, write_best

from pipeline.images import job as jobs
from pipeline.images import search, workers
from pipeline.images.checkpoints import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_is_up", "folder")]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("way", ways("worker killed"))
def test_training_that_was_cut_off_ends_as_if_it_had_not_been(way: str) -> None:
    cell = make_cell("mc_dropout", experiment={"epochs": 15, "milestones": [10]}, limits={"seeds": 1})
    expected = undisturbed(make_job(cell, "undisturbed"))
    write_best(cell)
    job = make_job(cell)
    checkpoints = Checkpoints(job.state)
    disturb(way, checkpoints.paths, "train", cell.name, worker="_train_alone")
    if way != "worker killed":
        assert not (cell.model / "training.json").exists()
        state = "RUNNING" if way == "driver killed" else "KILLED"
        assert tracked() == {"train mc_dropout": state, "train mc_dropout seed 0": state}
        assert command("train", cell.name)[0] == 0
    found = torch.load(cell.model / "seed-0" / "model.pt", weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    history = json.loads((cell.model / "seed-0" / "history.json").read_text())
    assert [epoch["epoch"] for epoch in history] == list(range(1, 16))
    assert tracked() == {"train mc_dropout": "FINISHED", "train mc_dropout seed 0": "FINISHED"}


@pytest.mark.parametrize("way", ways("driver killed"))
def test_a_search_that_was_cut_off_goes_on_from_the_checkpoints_of_its_trials(way: str) -> None:
    cell = searched([1e-3], epochs=15)
    state = search.progress_of(cell)
    trial = search.trial_job(cell, {"learning_rate": 1e-3}, state, jobs.data_of(cell))
    checkpoints = Checkpoints(trial.state)
    disturb(way, checkpoints.paths, "tune", cell.name, worker="ImplicitFunc")
    reached: list[Any] = []
    if way != "worker killed":
        assert tracked() == {"tune deterministic": "RUNNING" if way == "driver killed" else "KILLED"}
        kept = checkpoints.load()
        assert kept is not None and not kept["position"]["finished"]
        reached = kept["position"]["history"]
        assert command("tune", cell.name)[0] == 0
    (record,) = search.ended(state)
    assert record["history"][: len(reached)] == reached  # with their seconds: none was trained again
    alone = workers.alone(replace(trial, state=Path("undisturbed").absolute()), lambda epoch: None)
    assert record["status"] == "finished" and record["objective"] == alone.best_score
    assert tracked() == {"tune deterministic": "FINISHED", "tune deterministic learning_rate=0.001": "FINISHED"}
