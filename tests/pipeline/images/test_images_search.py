"""The search: what it chooses, what it goes on from, and that it leaves the cluster as it found it."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import ray
import yaml
from commands import PATIENCE, command, tracked, tracked_parameters
from image_study import make_cell, searched
from ray.util import placement_group_table
from tracking_cases import client, leave_unsent, runs

from pipeline import files, searching, tracking
from pipeline.images import job as jobs
from pipeline.images import search, workers
from pipeline.params import Cell
from pipeline.tracking.sender import leftovers


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def results(cell: Cell) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    best = yaml.safe_load((cell.tune / "best.yaml").read_text())
    return best, json.loads((cell.tune / "trials.json").read_text())


def test_a_cell_that_is_not_searched_takes_what_params_say_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell()
    monkeypatch.setattr(search.cluster, "connected", lambda: pytest.fail("Ray was asked for"))
    assert command("tune", cell.name) == (0, "")
    best, trials = results(cell)
    assert best["source"] == "params" and best["hyperparameters"] == cell.hyperparameters and not trials


def test_a_search_shows_its_recipe_and_its_grid() -> None:
    cell = searched([1e-3, 1e-4])
    for point in cell.grid_points():
        record = {"hyperparameters": point, "objective": 1.0, "status": "finished", "history": []}
        files.write_json(search.progress_of(cell) / search.trial_folder(point) / search.RECORD, record)
    search.run(cell)
    shown = tracked_parameters("tune deterministic")
    expected = {"grid.learning_rate": "[0.001, 0.0001]", "searcher": "grid", "epochs": "4"}
    assert shown.items() >= {**expected, "optimizer": "amsgrad", "batch_size": "8"}.items()


def test_a_trial_that_ended_while_nobody_watched_is_shown_with_its_epochs() -> None:
    """As when the driver is killed just then, and the command that follows finds nothing left to try."""
    cell = searched([1e-3])
    (point,) = cell.grid_points()
    history = [{"epoch": epoch, "loss": 1.0 / epoch, "validation_nll": None} for epoch in (1, 2)]
    record = {"hyperparameters": point, "objective": 1.0, "status": "finished", "history": history}
    files.write_json(search.progress_of(cell) / search.trial_folder(point) / search.RECORD, record)
    search.run(cell)
    name = "tune deterministic learning_rate=0.001"
    assert tracked() == {"tune deterministic": "FINISHED", name: "FINISHED"}
    with closing(sqlite3.connect("mlflow.db")) as store:
        of_the_trial = "SELECT step, value FROM metrics JOIN runs USING (run_uuid) WHERE name = ? ORDER BY step"
        assert store.execute(of_the_trial, [name]).fetchall() == [(1, 1.0), (2, 0.5)]


def test_a_search_whose_runs_were_deleted_shows_its_trials_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/mlflow.db")
    monkeypatch.setattr(tracking.runs, "_FIRST_ANSWER", PATIENCE)
    cell = searched([1e-3])
    (point,) = cell.grid_points()
    record = {"hyperparameters": point, "objective": 1.0, "status": "finished", "history": []}
    files.write_json(search.progress_of(cell) / search.trial_folder(point) / search.RECORD, record)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(searching, "conclude", Mock(side_effect=KeyboardInterrupt))
        search.run(cell)
    shown = runs("lenet-mnist")
    for run in shown:
        client().delete_run(run.info.run_id)
    search.run(cell)
    found = {run.info.run_name: run.info.status for run in runs("lenet-mnist")}
    assert found == {run.info.run_name: "FINISHED" for run in shown} and len(found) == 2


def test_trials_of_other_settings_are_set_aside_and_what_mlflow_has_not_got_stays() -> None:
    cell, state = searched([1e-3]), jobs.state_folder(searched([1e-3]), "tune")
    folder = search.progress_of(cell)
    trial = f"{search.trial_folder({'learning_rate': 1e-3})}/{search.RECORD}"
    files.write_json(Path(f"{folder}/{trial}"), {})
    told = [state, state / "children" / "some"]
    leave_unsent(*told)
    assert search.progress_of(cell) == folder and (folder / trial).exists()
    assert search.progress_of(searched([1e-4])) == folder and not (folder / trial).exists()
    assert len([*Path(str(state)).glob(f"set-aside/*-settings-learning_rate/{trial}")]) == 1
    assert sorted(leftovers(state)) == told


@pytest.mark.parametrize(
    ("cut_from", "epochs", "safe"),
    [(24 * 4 * 2 + 1, 4, 4), (24 * 4 * 2, 4, 2), (24 * 4 * 2, 7, 3), (24 * 4 * 2, 10, 4)],
)
def test_a_small_search_is_not_cut_and_others_from_a_third_of_the_schedule_on(
    cut_from: int, epochs: int, safe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two points, 24 images an epoch."""
    monkeypatch.setattr(search, "CUT_FROM", cut_from)
    assert search.safe_epochs(searched([1e-3, 1e-4], epochs=epochs)) == safe


def test_a_search_is_as_large_as_the_images_that_its_limits_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CUT_FROM", 4 * 2 * 10)
    for limit, images in ({"train_examples": 9}, 9), ({"steps_per_epoch": 1}, 8), ({"train_examples": 10}, 10):
        cell = searched([1e-3, 1e-4])
        cell = replace(cell, study=replace(cell.study, classification=replace(cell.study.classification, **limit)))
        assert search.safe_epochs(cell) == (2 if images == 10 else 4)


def assert_nothing_is_left() -> None:
    """No placement group, and all CPUs free; Ray takes a moment to say so."""
    deadline = time.monotonic() + PATIENCE
    while ray.available_resources().get("CPU", 0) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ray.available_resources().get("CPU") == 2
    assert [group for group in placement_group_table().values() if group["state"] != "REMOVED"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_workers, rates", ((1, [1e-3, 1e-8, 1e-9]), pytest.param(2, [1e-3, 1e-9], marks=pytest.mark.soak))
)
def test_asha_ends_trials_in_order_and_a_second_search_only_repeats_their_reports(
    ray_is_up: None, num_workers: int, rates: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CUT_FROM", 0)
    cell, looks = searched(rates, num_workers), set[tuple[int, int]]()
    monkeypatch.setattr(workers.Shortage, "look", lambda self, *asked: looks.add(asked))
    search.run(cell)
    assert looks == {(1, num_workers)}, "a lost node would go unnoticed"
    assert_nothing_is_left()
    best, trials = results(cell)
    by_rate = {trial["hyperparameters"]["learning_rate"]: trial for trial in trials}
    assert best["source"] == "search" and best["trials"] == len(rates)
    assert best["hyperparameters"]["learning_rate"] == 1e-3
    assert best["objective"] == by_rate[1e-3]["objective"] == min(trial["objective"] for trial in trials)
    assert by_rate[1e-3]["status"] == "finished" and by_rate[1e-3]["epochs"] == 4
    assert by_rate[1e-9]["status"] == "stopped" and by_rate[1e-9]["epochs"] < 4
    if num_workers == 1:
        state = search.progress_of(cell)
        kept = {path: path.stat().st_mtime_ns for path in state.glob(f"trial-*/{search.RECORD}")}
        search.run(cell)
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        assert results(cell) == (best, trials)


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ("optuna", "random"))
def test_a_searcher_tries_as_many_points_as_asked_and_ends(
    ray_is_up: None, monkeypatch: pytest.MonkeyPatch, searcher: str
) -> None:
    cell = searched([1e-3, 1e-4, 1e-5, 1e-6], epochs=1, searcher=searcher, trials=2)
    search.run(cell)
    best, trials = results(cell)
    tried = [trial["hyperparameters"] for trial in trials]
    assert len(tried) == 2 == best["trials"]
    assert tried[0] != tried[1] and all(point in cell.grid_points() for point in tried)
    assert {trial["status"] for trial in trials} == {"finished"}  # a rung at the last epoch ends nothing early
    assert best["objective"] == min(trial["objective"] for trial in trials)
    assert_nothing_is_left()
    monkeypatch.setattr(search.cluster, "connected", lambda: pytest.fail("Ray was asked for"))
    search.run(cell)  # has ended, and asks for nothing
    assert results(cell) == (best, trials)


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_workers, steps, said",
    (
        (1, None, "the loss became"),
        pytest.param(2, None, "the loss became", marks=pytest.mark.soak),
        (1, 1, "outputs for"),
    ),
)
def test_a_trial_that_diverges_at_once_is_left_out_and_the_search_goes_on(
    ray_is_up: None, num_workers: int, steps: int | None, said: str
) -> None:
    cell = searched([1e30, 1e-3], num_workers, epochs=1)
    limits = replace(cell.study.classification, steps_per_epoch=steps)
    recipe = replace(cell.experiment, optimizer="sgd")
    cell = replace(cell, experiment=recipe, study=replace(cell.study, classification=limits))
    search.run(cell)
    best, trials = results(cell)
    by_rate = {trial["hyperparameters"]["learning_rate"]: trial for trial in trials}
    assert best["hyperparameters"]["learning_rate"] == 1e-3
    assert by_rate[1e30]["objective"] is None and said in by_rate[1e30]["status"]
    assert tracked()["tune deterministic learning_rate=1e+30"] == "FAILED"
    assert_nothing_is_left()
