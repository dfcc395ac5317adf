"""The tables of variations, of their search on validation rows, and of nested searches."""

import json

import pytest

from pipeline.report import nested, variations
from pipeline.report.results import Score, Scores


def figures(changed, mean, std=0.01):
    return {"changed": changed, "mean": mean, "std": std, "rmse": 0.5, "coverage_95": 0.954, "cpu_seconds": 30.0}


def write(path, data, method, found):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": data, "method": method, "runs": 10, "variations": found}))


@pytest.fixture
def tables(tmp_path):
    wine = [
        figures({}, -1.0069),
        figures({"epochs": 50, "kappa": 0.1}, -0.9231),
        figures({"batch_size": 8}, None, None),
    ]
    write(variations.path_of(tmp_path, "wine-mnvi", False), "wine", "mnvi", wine)
    searched = {"kin8": [1.01, 1.1], "power": [-2.8, -2.9]}
    for data, (study, other) in searched.items():
        found = [figures({}, study), figures({"targets": "standardised"}, other)]
        write(variations.path_of(tmp_path, f"{data}-ddvi", True), data, "ddvi", found)
    power = [figures({"targets": "standardised"}, -2.85)]
    write(variations.path_of(tmp_path, "power-mc_dropout", False), "power", "mc_dropout", power)
    metrics = {
        "log_likelihood": Score(-2.9592, 0.0123),
        "rmse": Score(23.5157, 0.27),
        "coverage_95": Score(0.9934, 0.001),
    }
    scores = [
        Scores(cell, "regression", "", "", "", "", runs=20, metrics=metrics) for cell in ("power-mc_dropout", "x")
    ]
    return variations.tables(variations.found_variations(tmp_path), scores)


def test_a_method_s_table_has_its_figures_the_paper_s_and_the_command(tables):
    assert tables["variations mnvi"].splitlines() == [
        "| data | change | log-likelihood | RMSE | 95 % intervals hold |",
        "| --- | --- | --- | --- | --- |",
        "| wine | as in the study | −1.007 ± 0.010 | 0.5 | 95.4 % |",
        "| wine | epochs 50, kappa 0.1 | −0.923 ± 0.010 | 0.5 | 95.4 % |",
        "| wine | batch_size 8 | no complete run | 0.5 | 95.4 % |",
        "| wine | the paper's figure | −0.96 ± 0.01 |  |  |",
        "",
        "Made in 1.5 CPU minutes, on one thread, by",
        "",
        '    python -m tools.variations wine-mnvi "epochs=50 kappa=0.1" batch_size=8 --runs 10',
    ]


def test_the_study_s_own_setting_comes_from_its_scores_if_it_was_left_out(tables):
    assert tables["variations mc_dropout"].splitlines()[2:] == [
        "| power | as in the study, 20 runs | −2.959 ± 0.012 | 23.52 | 99.3 % |",
        "| power | targets standardised | −2.850 ± 0.010 | 0.5 | 95.4 % |",
        "| power | the paper's figure | −2.89 ± 0.01 |  |  |",
        "",
        "Made in 0.5 CPU minutes, on one thread, by",
        "",
        "    python -m tools.variations power-mc_dropout targets=standardised --runs 10 --only",
    ]


def test_a_search_has_a_column_for_each_set_and_its_best_in_bold(tables):
    assert tables["validation ddvi"].splitlines() == [
        "| change | kin8 | power |",
        "| --- | --- | --- |",
        "| as in the study | 1.010 | **−2.800** |",
        "| targets standardised | **1.100** | −2.900 |",
        "",
        "Made in 2.0 CPU minutes, on one thread, by",
        "",
        "    python -m tools.variations kin8-ddvi targets=standardised --runs 10 --validation",
        "    python -m tools.variations power-ddvi targets=standardised --runs 10 --validation",
    ]


def point(prior, validation, test):
    return {"hyperparameters": {"prior_variance": prior}, "validation": validation, "test": test, "cpu_seconds": 30.0}


@pytest.fixture
def found(tmp_path):
    """Point 1 is best on the validation rows of all folds, 10 on those of the second fold, 100 on the test rows."""
    points = [
        point(1.0, [[-1.0, -3.0]], [[-2.0, -2.0], [-4.0, -4.0]]),
        point(10.0, [[-3.0, -2.0]], [[-9.0, -1.0], [-9.0, -1.0]]),
        point(100.0, [[-9.0, -9.0]], [[-0.5, -0.5], [-0.5, -0.5]]),
    ]
    path = nested.path_of(tmp_path, "tiny-mnvi")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"runs": 2, "study": {"prior_variance": 10.0}, "points": points}))
    return nested.found_nested(tmp_path)


def test_each_way_of_choosing_has_its_own_test_figure(found):
    assert nested.table(found).splitlines() == [
        "**tiny-mnvi**",
        "",
        "| how the hyperparameters are chosen | chosen | log-likelihood on the test rows |",
        "| --- | --- | --- |",
        "| no search: the study's own settings | prior_variance 10 | −5.000 ± 0.000 |",
        "| one point for all folds, by the validation rows of all | prior_variance 1 | −3.000 ± 1.414 |",
        "| nested: a point for each fold, by its own validation rows "
        "| prior_variance 1 (1 fold); prior_variance 10 (1 fold) | −2.000 ± 0.707 |",
        "| not allowed: one point, by the test rows | prior_variance 100 | −0.500 ± 0.000 |",
        "",
        "Made in 1.5 CPU minutes, on one thread, by `python -m tools.nested tiny-mnvi --runs 2`.",
    ]


def test_a_point_with_a_failed_network_is_not_chosen(tmp_path):
    failed = nested.Point({"prior_variance": 1.0}, [[None, 9.0]], [[None, 9.0]])
    sound = nested.Point({"prior_variance": 10.0}, [[-1.0, -1.0]], [[-1.0, -1.0]])
    ways = nested.ways(nested.Nested("tiny-mnvi", 1, {}, [failed, sound], 1.0))
    assert {score["mean"] for way, (_, score) in ways.items() if not way.startswith("nested")} == {-1.0}
