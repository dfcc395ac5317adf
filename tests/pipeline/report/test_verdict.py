"""The sentences that the report begins with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipeline.report import tables, verdict
from pipeline.report.results import Score, Scores


def scores(method: str, mean: float, data: str = "boston", **changes: Any) -> Scores:
    known = {"complete": True, "runs": 20, "folds": 10, "metrics": {"log_likelihood": Score(mean, 0.02)}}
    return Scores(f"{data}-{method}", "regression", data, data, "mlp", method, **(known | changes))


def told(*found: Scores) -> dict[str, str]:
    """Each sentence with its kind."""
    results: Any = [SimpleNamespace(scores=one) for one in found]
    return {one.text: one.kind for one in verdict.of(results, tables.table_1(found), [])}


def test_the_best_method_is_named_with_the_next():
    text = told(scores("mnvi", -2.4), scores("dvi", -2.6), scores("ensemble", -2.9))
    assert "boston, Log-likelihood: MNVI (−2.400 ± 0.020) is ahead of DVI (−2.600 ± 0.020)." in text


def test_methods_within_a_standard_deviation_are_level():
    text = told(scores("mnvi", -2.40), scores("dvi", -2.41))
    assert "boston, Log-likelihood: MNVI (−2.400 ± 0.020) is level with DVI (−2.410 ± 0.020), of 2 methods." in text


def test_a_method_alone_is_not_called_the_best():
    assert "boston, Log-likelihood: MNVI (−2.400 ± 0.020); no other method was run." in told(scores("mnvi", -2.4))


def test_unfinished_and_missing_cells_are_counted_and_not_ranked():
    unfinished, missing = (
        scores("dvi", 0.0, complete=False),
        scores("ensemble", 0.0, missing="no source", complete=False),
    )
    text = told(scores("mnvi", -2.4), unfinished, missing)
    assert (
        text["1 of 3 cells are finished; without data: 1; run in part only, as study.limits says: 1."] == "unfinished"
    )
    assert not [sentence for sentence in text if "DVI" in sentence or "Ensemble" in sentence]


def test_a_study_without_a_finished_cell_says_so_first():
    (first, *_) = told(scores("mnvi", 0.0, missing="no source", complete=False)).items()
    assert first == ("0 of 1 cells are finished; without data: 1.", "differs")


def test_a_network_worse_than_a_baseline_is_named():
    metrics = {"log_likelihood": Score(-2.4, 0.02), "rmse": Score(83.0, 1.0)}
    text = told(scores("mnvi", 0.0, metrics=metrics, baselines={"mean": 77.0, "least_squares": 90.0}))
    sentence = "boston: the mean of the training targets, RMSE 77, does better than MNVI (83)."
    assert text[sentence] == "differs" and not any("least squares" in one for one in text)


def test_tables_that_the_paper_does_not_have_get_the_share_that_intervals_hold():
    metrics = {"log_likelihood": Score(-2.4, 0.02), "coverage_95": Score(0.946, None)}
    text = told(scores("mnvi", 0.0, data="own", metrics=metrics), scores("dvi", 0.0, metrics=metrics))
    held = [sentence for sentence in text if "intervals" in sentence]
    assert held == ["own: 95 % intervals hold 95 % (MNVI) of the targets."]


def test_where_no_cell_is_finished_those_cut_short_are_compared():
    text = told(scores("mnvi", -2.4, complete=False), scores("dvi", -2.6, complete=False))
    assert text["0 of 2 cells are finished; run in part only, as study.limits says: 2."] == "unfinished"
    best = "So far: boston, Log-likelihood: MNVI (−2.400 ± 0.020) is ahead of DVI (−2.600 ± 0.020)."
    assert text[best] == "unfinished"


def test_the_paper_s_figures_are_counted():
    text = told(scores("mnvi", -2.43), scores("dvi", -9.0))
    assert text["Reproduced: 1 of 2 figures that can be compared with the paper's."] == "differs"


def test_many_data_sets_are_counted_instead_of_listed():
    text = told(*(scores("mnvi", -1.0, data=f"own{i}") for i in range(9)))
    assert "Best on how many of 9 data sets: MNVI on 9." in text
