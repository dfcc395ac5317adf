"""The search: what it chooses, what it goes on from, and that it leaves the cluster as it found it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from image_study import METHODS, make_cell
from ray.util import placement_group_table

from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.images import search, workers
from pipeline.images.checkpoints import Checkpoints
from pipeline.params import Cell


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def searched(rates: list[float], workers: int = 1, epochs: int = 4) -> Cell:
    """A cell whose learning rate is searched; rates of nearly nothing fall behind at once."""
    methods = {**METHODS, "deterministic": {"grid": {"learning_rate": rates}}}
    return make_cell(
        "deterministic",
        experiment={"methods": methods, "epochs": epochs, "milestones": []},
        resources={"workers": workers},
        study={"search": ["lenet"]},
    )


def results(cell: Cell) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    best = yaml.safe_load((cell.tune / "best.yaml").read_text())
    return best, json.loads((cell.tune / "trials.json").read_text())


def test_a_cell_that_is_not_searched_takes_what_params_say_without_ray() -> None:
    cell = make_cell()
    search.run(cell)
    best, trials = results(cell)
    assert best["source"] == "params" and best["hyperparameters"] == cell.hyperparameters and not trials
    assert not ray.is_initialized()


def test_the_lowest_objective_is_chosen_and_failed_trials_are_not() -> None:
    trials: list[search.Trial] = [{"objective": None, "n": 0}, {"objective": 0.3, "n": 1}, {"objective": 0.2, "n": 2}]
    assert search.choose(trials)["n"] == 2
    with pytest.raises(StudyError, match="no trial has a validation NLL"):
        search.choose(trials[:1])


def test_a_shorter_search_keeps_the_shape_of_the_schedule() -> None:
    cell = make_cell(experiment={"epochs": 20, "milestones": [10]}, limits={"search_epochs": 4})
    assert search.short(cell).experiment.epochs == 4
    assert search.short(cell).experiment.milestones == (2,)


def assert_nothing_is_left() -> None:
    """No placement group, and all CPUs free; Ray takes a moment to say so."""
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ray.available_resources().get("CPU") == 2
    assert [group for group in placement_group_table().values() if group["state"] != "REMOVED"] == []


@pytest.mark.slow
@pytest.mark.parametrize("num_workers, rates", ((1, [1e-3, 1e-8, 1e-9]), (2, [1e-3, 1e-9])))
def test_asha_ends_trials_in_order_and_a_second_search_only_repeats_their_reports(
    cluster: None, num_workers: int, rates: list[float]
) -> None:
    cell = searched(rates, num_workers)
    search.run(cell)
    assert_nothing_is_left()
    best, trials = results(cell)
    by_rate = {trial["hyperparameters"]["learning_rate"]: trial for trial in trials}
    assert best["source"] == "search" and best["trials"] == len(rates)
    assert best["hyperparameters"]["learning_rate"] == 1e-3
    assert best["objective"] == by_rate[1e-3]["objective"] == min(trial["objective"] for trial in trials)
    assert by_rate[1e-3]["status"] == "finished" and by_rate[1e-3]["epochs"] == 4
    assert by_rate[1e-9]["status"] == "stopped" and by_rate[1e-9]["epochs"] < 4
    if num_workers == 1:
        state = jobs.state_folder(cell, "tune")
        kept = {path: path.stat().st_mtime_ns for path in state.glob(f"trial-*/{search.RECORD}")}
        search.run(cell)
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        assert results(cell) == (best, trials)


@pytest.mark.slow
def test_a_killed_search_goes_on_from_the_checkpoints_of_its_trials(cluster: None) -> None:
    cell = searched([1e-3], epochs=15)
    state = jobs.state_folder(cell, "tune")
    trial = search.trial_job(cell, {"learning_rate": 1e-3}, state, jobs.data_of(cell))
    running = subprocess.Popen([sys.executable, "-m", "pipeline.tune", "lenet"], stderr=subprocess.PIPE)
    checkpoints = Checkpoints(trial.state, trial.fingerprint)
    while not checkpoints.paths() and running.poll() is None:
        time.sleep(0.02)
    running.kill()
    running.communicate(timeout=60)
    kept = checkpoints.load()
    assert kept is not None and not kept["position"]["finished"]
    search.run(cell)
    (record,) = search.ended(state)
    reached = len(kept["position"]["history"])
    assert record["history"][:reached] == kept["position"]["history"]  # with their seconds: none was trained again
    undisturbed = workers.alone(replace(trial, state=Path("undisturbed").absolute()), lambda epoch: None)
    assert record["status"] == "finished" and record["objective"] == undisturbed.best_score
