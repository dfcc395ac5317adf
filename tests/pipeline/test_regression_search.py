import json

import pytest
import yaml
from tiny_study import cell, enter, write_params

from pipeline import cluster
from pipeline.errors import StudyError
from pipeline.regression import search


def best(one):
    return yaml.safe_load((one.tune / "best.yaml").read_text())


def trials(one):
    return json.loads((one.tune / "trials.json").read_text())


@pytest.mark.slow
def test_the_better_point_is_chosen_and_finished_trials_are_not_run_again(tmp_path, monkeypatch):
    grid = {"learning_rate": [1.0e-8, 0.05], "batch_size": [16]}
    enter(tmp_path, monkeypatch, grid=grid, recipe={"epochs": 60, "milestones": []}, limits={"search_epochs": 30})
    one = cell("deterministic")
    with cluster.connected():
        search.run(one)
        first = {path.name: path.stat().st_mtime_ns for path in one.state("tune").glob("finished/trial-*")}
        assert best(one)["source"] == "search"
        assert best(one)["hyperparameters"] == {"learning_rate": 0.05, "batch_size": 16}
        assert [trial["epochs"] for trial in trials(one)] == [30, 30]
        assert best(one)["objective"] == min(trial["objective"] for trial in trials(one))

        next(one.state("tune").glob("finished/trial-*")).unlink()  # as if killed before it ended
        before = trials(one)
        search.run(one)
    again = {path.name: path.stat().st_mtime_ns for path in one.state("tune").glob("finished/trial-*")}
    assert again.keys() == first.keys()
    assert sum(again[name] != first[name] for name in first) == 1
    assert [trial["objective"] for trial in trials(one)] == [trial["objective"] for trial in before]


def test_a_cell_that_is_not_searched_takes_its_hyperparameters_from_params_without_ray(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    monkeypatch.setattr(cluster, "connected", lambda: pytest.fail("Ray was asked for"))
    search.run(cell("mnvi"))
    expected = {"source": "params", "hyperparameters": {"prior_variance": 10.0}, "objective": None, "trials": 0}
    assert best(cell("mnvi")) == expected
    assert trials(cell("mnvi")) == []


def test_equal_objectives_go_to_the_first_of_the_grid():
    grid = [{"batch_size": 64}, {"batch_size": 32}]
    found = [{"hyperparameters": point, "objective": 1.0} for point in reversed(grid)]
    assert search.choose(found, grid)["hyperparameters"] == {"batch_size": 64}


def test_a_failed_trial_is_never_chosen():
    grid = [{"batch_size": 64}, {"batch_size": 32}]
    found = [
        {"hyperparameters": grid[0], "objective": None},
        {"hyperparameters": grid[1], "objective": 9.0},
    ]
    assert search.choose(found, grid)["hyperparameters"] == {"batch_size": 32}
    with pytest.raises(StudyError, match="learning_rate"):
        search.choose(found[:1], grid)


def test_random_search_draws_as_many_points_as_asked_and_always_the_same(tmp_path, monkeypatch):
    grid = {"batch_size": [8, 16, 32], "learning_rate": [0.1, 0.01]}
    enter(tmp_path, monkeypatch, grid=grid, searcher="random", trials=4)
    one = cell("deterministic")
    drawn = search.points(one)
    assert len(drawn) == 4
    assert drawn == search.points(one)
    assert all(point in one.grid_points() for point in drawn)


def test_optuna_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    enter(tmp_path, monkeypatch, grid={"batch_size": [8, 16]}, searcher="optuna")
    with pytest.raises(StudyError, match="optuna is not installed"):
        search.run(cell("deterministic"))


def test_trials_of_other_data_are_deleted(tmp_path):
    trial = {"hyperparameters": {"batch_size": 8}, "objective": 1.0}
    search.Ledger(tmp_path, ["settings", "digest"]).add(trial)
    assert search.Ledger(tmp_path, ["settings", "digest"]).trials() == [trial]
    assert search.Ledger(tmp_path, ["settings", "other"]).trials() == []


def test_a_short_trial_goes_through_the_whole_schedule(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    write_params(
        tmp_path / "params.yaml",
        recipe={"epochs": 40, "milestones": [20], "kappa": {0: 0.1, 20: 1.0}},
        limits={"search_epochs": 10},
    )
    short = search.short(cell("mnvi")).experiment
    assert (short.epochs, short.milestones, short.kappa) == (10, (5,), {0: 0.1, 5: 1.0})
