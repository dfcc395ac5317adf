"""The estimators for scikit-learn."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

import mnvi
from mnvi.sklearn import BayesianClassifier, BayesianRegressor

QUICK: dict[str, Any] = {"epochs": 20, "learning_rate": 0.05, "random_state": 0}


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [BayesianRegressor, BayesianClassifier])
def test_scikit_learn_s_own_checks_pass(estimator: type) -> None:
    """All of them; the one for arrays of other libraries runs if SCIPY_ARRAY_API=1 was set before Python started."""
    found = check_estimator(estimator(epochs=30, learning_rate=0.05), on_skip=None, on_fail=None)
    failed = {result["check_name"]: str(result["exception"]) for result in found if result["status"] == "failed"}
    skipped = {result["check_name"] for result in found if result["status"] == "skipped"}
    assert not failed and len(found) > 50 and skipped <= {"check_array_api_input"}


@pytest.mark.slow
def test_diabetes_is_predicted_as_well_as_by_least_squares_with_intervals_that_hold() -> None:
    """Five of ten folds: half of the time of all, which give the same within their errors."""
    X, y = load_diabetes(return_X_y=True)
    errors, plain, inside = [], [], []
    for train, test in list(KFold(10, shuffle=True, random_state=0).split(X))[:5]:
        model = BayesianRegressor(random_state=0, epochs=100).fit(X[train], y[train])
        lower, upper = model.predict_interval(X[test], level=0.95)
        errors.append(model.predict(X[test]) - y[test])
        plain.append(LinearRegression().fit(X[train], y[train]).predict(X[test]) - y[test])
        inside.append((lower <= y[test]) & (y[test] <= upper))
    rmse, least_squares = (np.sqrt(np.mean(np.concatenate(found) ** 2)) for found in (errors, plain))
    assert rmse <= 1.05 * least_squares
    assert 0.90 <= np.concatenate(inside).mean() <= 0.98


@pytest.mark.parametrize("unit", [1e-3, 1e6])
def test_units_of_inputs_and_targets_do_not_matter(unit: float) -> None:
    X, y = load_diabetes(return_X_y=True)
    plain = BayesianRegressor(**QUICK).fit(X, y)
    other = BayesianRegressor(**QUICK).fit(unit * X + 7, unit * y - 3)
    mean, std = other.predict(unit * X + 7, return_std=True)
    expected_mean, expected_std = plain.predict(X, return_std=True)
    np.testing.assert_allclose((mean + 3) / unit, expected_mean, rtol=1e-2)
    np.testing.assert_allclose(std / unit, expected_std, rtol=1e-2)


def test_standard_deviations_have_two_parts_in_the_unit_of_the_targets() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = BayesianRegressor(**QUICK).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    prediction = model.predict_uncertainty(X)
    np.testing.assert_allclose(prediction.aleatoric**2 + prediction.epistemic**2, std**2)
    lower, upper = model.predict_interval(X, level=0.6826895)
    np.testing.assert_allclose((lower, upper), (mean - std, mean + std), rtol=1e-6)
    assert 20 < std.mean() < 80


def test_classes_of_any_type_are_predicted() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = BayesianClassifier(**QUICK).fit(X, names)
    assert model.score(X, names) > 0.9 and model.predict(X).dtype == names.dtype
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert (model.predict_uncertainty(X).epistemic > 0).all()


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="y has one class"):
        BayesianClassifier().fit(np.zeros((4, 2)), ["a"] * 4)


def test_pipelines_grid_search_and_cross_validation_take_the_estimators() -> None:
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(MinMaxScaler(), BayesianClassifier(**QUICK))
    search = GridSearchCV(pipeline, {"bayesianclassifier__kappa": [0.1, 100.0]}, cv=2).fit(X, y)
    assert search.best_params_ == {"bayesianclassifier__kappa": 0.1}
    X, y = load_diabetes(return_X_y=True)
    assert cross_val_score(BayesianRegressor(**QUICK), X, y, cv=2).mean() > 0.3


def test_a_pickled_estimator_predicts_the_same_and_a_clone_trains_to_the_same() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = BayesianRegressor(**QUICK).fit(X, y)
    for other in (pickle.loads(pickle.dumps(model)), clone(model).fit(X, y)):
        np.testing.assert_array_equal(other.predict(X), model.predict(X))


def test_importing_mnvi_gives_the_module_when_it_is_asked_for() -> None:
    seen = "'sklearn' in sys.modules"
    code = f"import sys, mnvi; assert not {seen}; mnvi.sklearn.BayesianRegressor; assert {seen}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert mnvi.sklearn.BayesianRegressor is BayesianRegressor


def test_without_scikit_learn_the_error_says_what_to_install() -> None:
    code = """
import sys, mnvi
sys.modules["sklearn"] = None
try:
    mnvi.sklearn
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'mnvi[sklearn]'" in done.stdout


@pytest.mark.parametrize("estimator", [BayesianRegressor, BayesianClassifier])
def test_every_argument_is_explained(estimator: type) -> None:
    text = estimator.__doc__ or ""
    assert ">>>" in text and all(f"{name}" in text for name in estimator().get_params())
