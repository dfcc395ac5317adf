"""What both kinds of search share: which points are tried, by which searcher, and which of them is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_study import cell, enter
from tracking_cases import history, runs

from pipeline import searching, tracking
from pipeline.errors import StudyError
from pipeline.params import Cell
from pipeline.searching import Optuna, Point, Trial, choose, proposer

GRID = {"batch_size": [8, 16, 32], "learning_rate": [0.1, 0.01]}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def searched(**settings: Any) -> Cell:
        enter(tmp_path, monkeypatch, grid=GRID, **settings)
        return cell("deterministic")

    return searched


def ended(point: Point, objective: float | None = 1.0) -> Trial:
    return {"hyperparameters": point, "objective": objective, "status": "failed" if objective is None else "finished"}


def test_a_trial_is_a_run_named_after_its_point_and_fails_if_it_diverged(
    study: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, fine = study(), {"kappa_over_n": 2.0e-7, "prior_variance": 0.001, "batch_size": 8}
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # the store of this folder, not the one that studies share
    wrong, curve = {**fine, "batch_size": 16}, [(1, {"nll": 0.5}), (2, {"nll": 0.25})]
    with tracking.run(one, "tune", state=one.state("tune")) as parent:
        searching.track(one, {**ended(fine), "status": "finished"}, curve, parent)
        searching.track(one, {**ended(wrong, None), "status": "failed: the loss became inf"}, curve[:1], parent)
    found = {run.info.run_name: run for run in runs("tiny")}
    name = "tune deterministic kappa_over_n=2e-07 prior_variance=0.001 batch_size="
    assert found.keys() == {"tune deterministic", f"{name}8", f"{name}16"}
    statuses = {8: ("FINISHED", "finished"), 16: ("FAILED", "failed: the loss became inf")}
    for size, (status, said) in statuses.items():
        run = found[f"{name}{size}"]
        assert (run.info.status, run.data.tags["status"]) == (status, said)
        assert run.data.params == {"kappa_over_n": "2e-07", "prior_variance": "0.001", "batch_size": f"{size}"}
    assert history(found[f"{name}8"].info.run_id, "nll") == [(1, 0.5), (2, 0.25)]
    assert found["tune deterministic"].info.status == "FINISHED"


def test_the_lowest_objective_is_chosen() -> None:
    grid = [{"n": 0}, {"n": 1}, {"n": 2}]
    assert choose([ended(grid[0], None), ended(grid[1], 0.3), ended(grid[2], 0.2)], grid)["hyperparameters"] == {"n": 2}


def test_equal_objectives_go_to_the_first_of_the_grid() -> None:
    grid = [{"n": 0}, {"n": 1}]
    assert choose([ended(point) for point in reversed(grid)], grid)["hyperparameters"] == {"n": 0}


def test_without_a_sound_trial_it_is_said_what_to_change() -> None:
    with pytest.raises(StudyError, match="lower learning_rate"):
        choose([ended({"n": 0}, None)], [{"n": 0}])


def test_a_search_taken_up_is_given_the_points_it_lacks(study: Any) -> None:
    one = study()
    points = one.grid_points()
    for again, expected in ((False, points[2:]), (True, points)):
        algorithm, count = proposer(one, [ended(point) for point in points[:2]], again)
        assert count == len(expected)
        assert [algorithm.suggest(str(k)) for k in range(count)] == expected


def test_random_search_draws_as_many_points_as_asked_and_always_the_same(study: Any) -> None:
    one = study(searcher="random", trials=4)
    drawn = [proposer(one, []) for _ in range(2)]
    assert [count for _, count in drawn] == [4, 4]
    first, second = ([algorithm.suggest(str(k)) for k in range(4)] for algorithm, _ in drawn)
    assert first == second and all(point in one.grid_points() for point in first)
    assert first != one.grid_points()[:4]
    assert proposer(one, [ended(point) for point in first])[1] == 0


def proposals(searcher: Optuna, objective: Any, count: int) -> list[Point]:
    searcher.set_search_properties("nll", "min", {})
    tried = []
    for k in range(count):
        point = searcher.suggest(str(k))
        searcher.on_trial_complete(str(k), {"nll": objective(point)})
        tried.append(point)
    return tried


def test_optuna_tries_every_point_once_and_ends_when_none_is_left(study: Any) -> None:
    one = study(searcher="optuna", trials=100)
    searcher, count = proposer(one, [])
    assert count == 6
    tried = proposals(searcher, lambda point: 1.0, count)
    assert sorted(map(str, tried)) == sorted(map(str, one.grid_points()))
    assert proposer(one, [ended(point) for point in tried])[1] == 0


def test_optuna_that_is_taken_up_proposes_nothing_it_knows(study: Any) -> None:
    one = study(searcher="optuna", trials=5)
    known = [ended(point, None if k else 0.5) for k, point in enumerate(one.grid_points()[:3])]
    searcher, count = proposer(one, known)
    assert count == 2
    assert not [point for point in proposals(searcher, lambda point: 1.0, count) if ended(point) in known]


def test_optuna_gives_out_what_it_knows_first_if_it_is_to_be_repeated(study: Any) -> None:
    one = study(searcher="optuna", trials=5)
    points = one.grid_points()[:3]
    searcher, count = proposer(one, [ended(point) for point in points], again=True)
    assert count == 5
    tried = proposals(searcher, lambda point: 1.0, count)
    assert tried[:3] == points and not [point for point in tried[3:] if point in points]


def test_optuna_looks_where_results_are_good(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thirty points of a hundred it finds more among the best twenty than chance does: six on average."""
    rates = [10.0**-k for k in range(10)]
    monkeypatch.setitem(GRID, "batch_size", list(range(1, 11)))
    monkeypatch.setitem(GRID, "learning_rate", rates)
    one = study(searcher="optuna", trials=30)

    def objective(point: Point) -> float:
        return float(rates.index(point["learning_rate"]))

    tried = proposals(*proposer(one, [])[:1], objective, 30)
    assert sum(objective(point) < 2 for point in tried) >= 12


def test_a_trial_that_failed_does_not_end_optuna(study: Any) -> None:
    one = study(searcher="optuna", trials=2)
    searcher, _ = proposer(one, [])
    searcher.set_search_properties("nll", "min", {})
    searcher.suggest("a")
    searcher.on_trial_complete("a", error=True)
    assert searcher.suggest("b") in one.grid_points()


def test_a_short_trial_goes_through_the_whole_schedule(study: Any) -> None:
    recipe = {"epochs": 40, "milestones": [20], "kappa": {0: 0.1, 20: 1.0}}
    short = searching.short(study(recipe=recipe, limits={"search_epochs": 10})).experiment
    assert (short.epochs, short.milestones, short.kappa) == (10, (5,), {0: 0.1, 5: 1.0})
