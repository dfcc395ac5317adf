import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tiny_study import cell, enter
from tracking_cases import runs

import mnvi
from pipeline import files, missing, propagation, tune
from pipeline.registry.methods import METHODS
from pipeline.regression import baselines, cell_networks, evaluation, folds, predictions


@pytest.fixture(autouse=True)
def study(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)


def trained(method, failures=None):
    """Trains in this process and writes what the training stage does."""
    one = cell(method)
    tune.leave_unsearched(one)
    table, tests = folds.load(one)
    parts = folds.test_folds(table, tests)
    plan = cell_networks.plan(one, folds=2, runs=2)
    nets = cell_networks.train(one, plan, parts)
    for k, epoch in (failures or {}).items():
        nets.losses[k, epoch:] = math.nan
    files.write_tensors(one.model / "replicas.pt", {"state": nets.state, "losses": nets.losses, "failures": failures})
    report = {"folds": 2, "runs": 2, "epochs": 3, "complete": True, "seconds": 1.5, "num_parameters": 7}
    made_by = {"hyperparameters": one.hyperparameters, "compiled": False, "fingerprint": one.fingerprint("train")}
    files.write_json(one.model / "training.json", {**report, **made_by})
    evaluation.run(one)
    return nets, parts, json.loads((one.evaluate / "scores.json").read_text())


@torch.no_grad()
@pytest.mark.parametrize("method", ["mnvi", "ensemble", "mc_dropout", "dvi", "deterministic"])
def test_an_output_is_taken_back_to_the_unit_of_the_targets(method):
    one = cell(method)
    table, tests = folds.load(one)
    parts = folds.test_folds(replace(table, y=1000 + 50 * table.y), tests, "standardised")
    plan = cell_networks.plan(one, folds=1, runs=1)
    nets = cell_networks.train(one, plan, parts)
    objectives = [nets.module(k) for k in range(len(plan))]
    prediction = predictions._predict(one, objectives, parts[0])
    own_unit = replace(parts[0], target_mean=0.0, target_std=1.0)
    in_training = predictions._predict(one, objectives, own_unit)
    scale, shift = parts[0].target_std, parts[0].target_mean
    torch.testing.assert_close(prediction.mean, in_training.mean * scale + shift, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(prediction.variance, in_training.variance * scale**2, rtol=1e-4, atol=0.0)


def test_networks_worse_than_the_mean_of_the_targets_are_named():
    baseline = {"mean": 77.0, "least_squares": 55.0}
    said = baselines.verdict("mine-mnvi", 83.0, baseline, "raw")
    assert said == (
        "warning: mine-mnvi: the RMSE of the networks, 83, is above that of the mean of the training targets (77) and "
        "that of least squares (55); `targets: standardised` in the experiment may help"
    )
    assert "standardised" not in baselines.verdict("mine-mnvi", 60.0, baseline, "standardised")
    assert baselines.verdict("mine-mnvi", 54.0, baseline, "raw") is None


def test_baselines_are_those_of_the_training_rows():
    table, tests = folds.load(cell("mnvi"))
    found = baselines.rmse(folds.test_folds(table, tests, "standardised"))
    raw = baselines.rmse(folds.test_folds(table, tests))
    errors = {"mean": [], "least_squares": []}
    for rows in tests:
        held = rows.tolist()
        others = [row for row in range(len(table.y)) if row not in held]
        x, y = table.x[others].numpy(), table.y[others].numpy()
        matrix = np.column_stack([x, np.ones(len(x))])
        weights = np.linalg.lstsq(matrix, y, rcond=None)[0]
        predicted = np.column_stack([table.x[held].numpy(), np.ones(len(held))]) @ weights
        errors["least_squares"].append(np.sqrt(np.mean((predicted - table.y[held].numpy()) ** 2)))
        errors["mean"].append(np.sqrt(np.mean((y.mean() - table.y[held].numpy()) ** 2)))
    expected = {name: statistics.fmean(values) for name, values in errors.items()}
    assert found == pytest.approx(expected, rel=1e-4) and raw == pytest.approx(expected, rel=1e-4)


def normal_log_density(y, mean, variance):
    return -0.5 * (torch.log(2 * math.pi * variance) + (y - mean).square() / variance)


@torch.no_grad()
def test_scores_of_a_one_pass_method_by_hand():
    nets, parts, scores = trained("mnvi")
    with propagation.options(METHODS["mnvi"]):
        out = nets.module(3).net(parts[1].held_x)  # run 1, fold 1
    mean, variance = out.mean[:, 0], out.var[:, 0] + torch.exp(out.mean[:, 1] + out.var[:, 1] / 2)
    y = parts[1].held_y
    expected = {
        "log_likelihood": normal_log_density(y, mean, variance).mean(),
        "rmse": (mean - y).square().mean().sqrt(),
        "coverage_95": ((y - mean).abs() <= 1.959964 * variance.sqrt()).float().mean(),
        "coverage_50": ((y - mean).abs() <= 0.6744898 * variance.sqrt()).float().mean(),
    }
    for name, value in expected.items():
        assert scores["per_fold"][name][1][1] == pytest.approx(float(value), rel=1e-5), name


@torch.no_grad()
def test_an_ensemble_predicts_with_the_mixture_of_its_members():
    nets, parts, scores = trained("ensemble")
    y = parts[1].held_y
    outs = [nets.module(k).net(parts[1].held_x) for k in (3, 4, 5)]  # run 0, fold 1
    densities = torch.stack([normal_log_density(y, out[:, 0], out[:, 1].exp()) for out in outs])
    expected = (densities.logsumexp(0) - math.log(3)).mean()
    assert scores["per_fold"]["log_likelihood"][0][1] == pytest.approx(float(expected), rel=1e-5)
    rmse = (torch.stack([out[:, 0] for out in outs]).mean(0) - y).square().mean().sqrt()
    assert scores["per_fold"]["rmse"][0][1] == pytest.approx(float(rmse), rel=1e-5)


def test_a_run_is_the_mean_of_its_folds_and_the_deviation_is_over_runs():
    _, _, scores = trained("ddvi")
    per_run = [sum(run) / 2 for run in scores["per_fold"]["rmse"]]
    assert scores["metrics"]["rmse"]["values"] == pytest.approx(per_run)
    assert scores["metrics"]["rmse"]["mean"] == pytest.approx(sum(per_run) / 2)
    assert scores["metrics"]["rmse"]["std"] == pytest.approx(abs(per_run[0] - per_run[1]) / math.sqrt(2))
    flat = json.loads((cell("ddvi").evaluate / "metrics.json").read_text())
    likelihood = scores["metrics"]["log_likelihood"]
    expected = {"log_likelihood": likelihood["mean"], "log_likelihood_std": likelihood["std"]}
    assert flat == {**expected, "rmse": scores["metrics"]["rmse"]["mean"]}
    (run,) = [run for run in runs("tiny") if run.info.run_name == "evaluate ddvi"][-1:]
    assert run.data.metrics["rmse_std"] == scores["metrics"]["rmse"]["std"]


def test_runs_with_a_failed_network_are_left_out_and_counted():
    _, _, scores = trained("deterministic", failures={1: 2})
    assert scores["failed"] == [{"fold": 1, "run": 0, "epoch": 2}]
    rmse = scores["per_fold"]["rmse"]
    assert rmse[0][1] is None
    assert scores["metrics"]["rmse"]["values"] == pytest.approx([statistics.fmean(rmse[1])])
    assert scores["runs"] == 1 and scores["metrics"]["rmse"]["std"] is None


def test_an_ensemble_with_a_failed_member_is_left_out():
    _, _, scores = trained("ensemble", failures={4: 1})
    assert scores["failed"] == [{"fold": 1, "run": 0, "epoch": 1}]


def test_other_weights_get_a_run_of_their_own_though_dvc_has_noted_nothing():
    Path("dvc.lock").write_text("train")
    before, found = len(runs("tiny")), []
    nets, _, scores = trained("deterministic")
    found.append(scores["metrics"]["rmse"]["mean"])
    saved = files.read_tensors(cell("deterministic").model / "replicas.pt", "the test")
    saved["state"] = {name: value / 2 for name, value in nets.state.items()}
    files.write_tensors(cell("deterministic").model / "replicas.pt", saved)
    for _ in range(2):  # the second time as if DVC had been stopped
        evaluation.run(cell("deterministic"))
    found.append(json.loads((cell("deterministic").evaluate / "metrics.json").read_text())["rmse"])
    assert found[0] != found[1]
    assert [run.data.metrics["rmse"] for run in runs("tiny")[before:]] == found


def test_a_run_names_the_table_it_was_tested_on():
    before = len(runs("tiny"))
    trained("mnvi")
    (run,) = runs("tiny")[before:]
    (data,) = run.inputs.dataset_inputs
    assert data.dataset.name == "tiny" and data.tags[0].value == "test"
    assert run.data.params.items() >= {"optimizer": "sgd", "runs": "2", "folds": "2"}.items()


def test_one_run_has_no_deviation():
    assert evaluation.summary([[1.0, 3.0]]) == {"mean": 2.0, "std": None, "values": [2.0]}


def test_a_run_that_lacks_a_fold_is_left_out():
    assert evaluation.summary([[None, 9.0], [1.0, 2.0]])["values"] == [1.5]
    assert evaluation.summary([[None, 9.0]]) == {"mean": None, "std": None, "values": []}


def test_standard_splits_deviate_over_splits():
    assert evaluation.over_splits([[1.0, 3.0], [3.0, 5.0], [9.0, None]]) == {
        "mean": 3.0,
        "std": pytest.approx(math.sqrt(2)),
        "values": [2.0, 4.0],
    }


def test_kappa_is_scaled_by_the_rows_of_the_training_fold():
    one = cell("mnvi")
    table, tests = folds.load(one)
    objective = cell_networks.builder(one, cell_networks.plan(one, 2, 1), folds.test_folds(table, tests))(0)
    assert objective.elbo.num_data == 30
    assert isinstance(objective.elbo.kappa, mnvi.StepSchedule)
    assert objective.elbo.kappa(2) == 1.0


def test_a_cell_without_data_has_all_the_files_that_dvc_expects():
    stage = yaml.safe_load((Path(__file__).parents[3] / "dvc.yaml").read_text())["stages"]["evaluate"]["do"]
    missing.evaluate(one := cell("mnvi"), "no source has them")
    for output in [*stage["outs"], *stage["metrics"]]:
        (place,) = output
        assert (one.evaluate / place.rpartition("/")[2]).exists()
