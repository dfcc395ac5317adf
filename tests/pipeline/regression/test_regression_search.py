import json
from dataclasses import replace

import pytest
import yaml
from tiny_study import cell, enter
from tracking_cases import leave_unsent, runs

from pipeline import cluster, tune
from pipeline.regression import folds, search
from pipeline.tracking.sender import leftovers


def best(one):
    return yaml.safe_load((one.tune / "best.yaml").read_text())


def trials(one):
    return json.loads((one.tune / "trials.json").read_text())


@pytest.mark.slow
def test_the_better_point_is_chosen_and_finished_trials_are_not_run_again(ray_is_up, tmp_path, monkeypatch):
    grid = {"learning_rate": [1.0e-8, 0.05], "batch_size": [16]}
    enter(tmp_path, monkeypatch, grid=grid, recipe={"epochs": 60, "milestones": []}, limits={"search_epochs": 30})
    one = cell("deterministic")
    search.run(one)
    first = {path.name: path.stat().st_mtime_ns for path in one.state("tune").glob("progress/trial-*")}
    assert best(one)["source"] == "search"
    assert best(one)["hyperparameters"] == {"learning_rate": 0.05, "batch_size": 16}
    assert [trial["epochs"] for trial in trials(one)] == [30, 30]
    assert best(one)["objective"] == min(trial["objective"] for trial in trials(one))

    next(one.state("tune").glob("progress/trial-*")).unlink()  # as if killed before it ended
    before = trials(one)
    search.run(one)
    again = {path.name: path.stat().st_mtime_ns for path in one.state("tune").glob("progress/trial-*")}
    assert again.keys() == first.keys()
    assert sum(again[name] != first[name] for name in first) == 1
    assert [trial["objective"] for trial in trials(one)] == [trial["objective"] for trial in before]


def test_a_cell_that_is_not_searched_takes_its_hyperparameters_from_params_without_ray(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    monkeypatch.setattr(cluster, "connected", lambda: pytest.fail("Ray was asked for"))
    tune.leave_unsearched(cell("mnvi"))
    expected = {"source": "params", "hyperparameters": {"prior_variance": 10.0}, "objective": None, "trials": 0}
    assert best(cell("mnvi")) == expected
    assert trials(cell("mnvi")) == []


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["optuna", "random"])
def test_a_searcher_tries_as_many_points_as_asked_and_ends(ray_is_up, tmp_path, monkeypatch, searcher):
    grid = {"learning_rate": [0.1, 0.05, 0.01], "batch_size": [16, 32]}
    enter(tmp_path, monkeypatch, grid=grid, searcher=searcher, trials=2)
    one = cell("deterministic")
    search.run(one)
    tried = [trial["hyperparameters"] for trial in trials(one)]
    assert len(tried) == 2 == best(one)["trials"]
    assert all(tried.count(point) == 1 and point in one.grid_points() for point in tried)
    assert best(one)["objective"] == min(trial["objective"] for trial in trials(one))
    before = trials(one)
    monkeypatch.setattr(cluster, "connected", lambda: pytest.fail("a search that has ended was taken up"))
    search.run(one)
    assert trials(one) == before


def ledger_of(one, **changes):
    table, tests = folds.load(one)
    return search.Ledger.of(one, folds.validation_folds(replace(table, **changes), tests), compiled=False)


def end_all_trials(one):
    """As a search of these settings would have."""
    ledger = ledger_of(one)
    for point in one.grid_points():
        figures = {"epochs": 2, "objective": 1.0, "seconds": 1.0, "status": "finished"}
        ledger.add({"hyperparameters": point, **figures})


def test_a_search_shows_its_recipe_and_its_grid(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch, grid={"learning_rate": [0.1, 0.05]}, limits={"search_epochs": 2})
    one = cell("mfvi")
    end_all_trials(one)
    search.run(one)
    shown = next(run.data.params for run in runs("tiny") if run.info.run_name == "tune mfvi")
    expected = {"grid.learning_rate": "[0.1, 0.05]", "searcher": "grid", "epochs": "2", "folds": "2"}
    assert shown.items() >= {**expected, "optimizer": "sgd", "batch_size": "16", "prior_variance": "10.0"}.items()


def test_a_search_that_is_repeated_shows_the_trials_of_the_first_below_its_own_run(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch, grid={"learning_rate": [0.1, 0.05]})
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # the store of this folder, not the one that studies share
    one = cell("deterministic")
    end_all_trials(one)
    for _ in range(2):
        search.run(one)
    found = runs("tiny")
    parents = [run.info.run_id for run in found if run.info.run_name == "tune deterministic"]
    below = [run.data.tags.get("mlflow.parentRunId") for run in found]
    assert len(parents) == 2 and [below.count(parent) for parent in parents] == [2, 2]


def test_trials_of_other_data_are_set_aside(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch, grid={"learning_rate": [0.1, 0.05]})
    one = cell("deterministic")
    trial = {"hyperparameters": {"learning_rate": 0.1}, "objective": 1.0}
    ledger_of(one).add(trial)
    assert ledger_of(one).trials() == [trial]
    assert ledger_of(one, y=folds.load(one)[0].y + 1).trials() == []
    (kept,) = one.state("tune").glob("set-aside/*-data/trial-*.json")
    assert json.loads(kept.read_text()) == trial


def test_what_mlflow_has_not_got_of_trials_with_other_settings_is_kept(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch, grid={"learning_rate": [0.1, 0.05]})
    one = cell("deterministic")
    ledger_of(one)
    told = [one.state("tune"), one.state("tune") / "children" / "some"]
    leave_unsent(*told)
    ledger_of(replace(one, grid={"learning_rate": [0.1]}))
    assert sorted(leftovers(one.state("tune"))) == told
