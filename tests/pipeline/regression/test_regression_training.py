import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_study import METHODS, cell, enter, make_study
from tracking_cases import best_model

from pipeline import cluster, compiler, files, tune
from pipeline.data.tablesets import load_table
from pipeline.params import code
from pipeline.registry.metrics import measured
from pipeline.regression import cell_networks, compiling, evaluation, folds, training
from pipeline.regression.chunks import Chunks
from pipeline.regression.predictions import judge

pytestmark = pytest.mark.slow


@pytest.fixture
def study(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    return tmp_path


def train(method):
    one = cell(method)
    tune.leave_unsearched(one)
    training.run(one)
    return one


@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_from_table_to_scores(study, ray_is_up, method):
    one = train(method)
    evaluation.run(one)
    scores = json.loads((one.evaluate / "scores.json").read_text())
    assert scores["failed"] == []
    assert scores["complete"]
    assert scores["num_parameters"] > 0
    for name in [metric.name for metric in measured("regression")]:
        assert len(scores["metrics"][name]["values"]) == 2, name
        assert [len(run) for run in scores["per_fold"][name]] == [2, 2], name
    assert scores["metrics"]["log_likelihood"]["std"] > 0


def test_a_network_of_the_plan_equals_one_trained_by_itself(study, ray_is_up):
    one = train("mnvi")
    saved = torch.load(one.model / "replicas.pt", weights_only=True)
    table, tests = folds.load(one)
    parts = folds.test_folds(table, tests)
    plan = cell_networks.plan(one, folds=2, runs=2)
    alone = cell_networks.train(one, [plan[3]], parts)
    for name, values in saved["state"].items():
        torch.testing.assert_close(values[3], alone.state[name][0], msg=name)


@pytest.mark.parametrize("method", ["mnvi", "ensemble"])
def test_the_first_network_is_a_registered_model_that_takes_rows_as_they_are(study, ray_is_up, method):
    one = train(method)
    table, tests = folds.load(one)
    parts, plan = folds.test_folds(table, tests), cell_networks.plan(one, folds=2, runs=2)
    saved = torch.load(one.model / "replicas.pt", weights_only=True)
    (first, *_) = judge(one, plan, parts, cell_networks.restore(one, plan, parts, saved), mean_and_deviation)
    answer = best_model(f"tiny-{method}").predict(table.x[tests[0]].numpy())
    assert answer["mean"].mean() == pytest.approx(first.scores["mean"], rel=1e-4)
    assert answer["std"].mean() == pytest.approx(first.scores["std"], rel=1e-4)


def mean_and_deviation(prediction, y):
    return {"mean": float(prediction.mean.mean()), "std": float(prediction.stddev.mean())}


def test_predictions_of_sampling_methods_repeat(study, ray_is_up):
    one = train("mc_dropout")
    evaluation.run(one)
    first = (one.evaluate / "scores.json").read_bytes()
    evaluation.run(one)
    assert (one.evaluate / "scores.json").read_bytes() == first


def test_a_loss_that_is_no_number_is_reported_and_harms_no_other_network(study, ray_is_up, capsys):
    sound = torch.load(train("mnvi").model / "replicas.pt", weights_only=True)
    table = load_table("data/tiny")
    y = torch.as_tensor(table.y).numpy().copy()
    y[0] = 1e30  # a test row of fold 0, a training row of fold 1; its square overflows
    np.save("data/tiny/y.npy", y)
    files.write_json("data/tiny/summary.json", {**table.summary, "digest": "1" * 64})
    one = train("mnvi")
    report = json.loads((one.model / "training.json").read_text())
    assert [(entry["fold"], entry["run"]) for entry in report["failures"]] == [(1, 0), (1, 1)]
    assert "fold 1, run 0: the loss was not finite in epoch 0; run 0 is left out" in capsys.readouterr().err
    harmed = torch.load(one.model / "replicas.pt", weights_only=True)
    for name, values in sound["state"].items():
        torch.testing.assert_close(harmed["state"][name][[0, 2]], values[[0, 2]], rtol=0, atol=0, msg=name)


def test_training_again_takes_finished_chunks_without_ray(study, ray_is_up, monkeypatch):
    one = train("deterministic")
    before = torch.load(one.model / "replicas.pt", weights_only=True)
    files.remove(one.model)
    monkeypatch.setattr(cluster, "connected", lambda: pytest.fail("Ray was asked for"))
    training.run(one)
    after = torch.load(one.model / "replicas.pt", weights_only=True)
    for name, values in before["state"].items():
        assert torch.equal(values, after["state"][name]), name


def set_aside(one):
    return [path.parent.name for path in one.state("train").glob("set-aside/*/*.pt")]


def test_chunks_of_other_settings_are_set_aside(study, ray_is_up):
    one = train("deterministic")
    table, tests = folds.load(one)
    parts, plan = folds.test_folds(table, tests), cell_networks.plan(one, folds=2, runs=2)
    assert Chunks.of(one, parts, plan).finished()
    changed = one.with_hyperparameters({"learning_rate": 0.01})
    assert not Chunks.of(changed, parts, plan).finished()
    (name,) = set_aside(one)
    assert name.endswith("-settings-learning_rate")


def test_chunks_of_other_code_are_set_aside(study, ray_is_up, monkeypatch):
    one = train("deterministic")
    table, tests = folds.load(one)
    parts, plan = folds.test_folds(table, tests), cell_networks.plan(one, folds=2, runs=2)
    known = one.code("train")
    monkeypatch.setattr(code, "of", lambda *_: {**known, "pipeline.regression.folds": "changed"})
    assert not Chunks.of(one, parts, plan).finished()
    (name,) = set_aside(one)
    assert name.endswith("-code-pipeline.regression.folds")


def test_chunks_of_other_targets_are_set_aside(study, ray_is_up):
    one = train("deterministic")
    table, tests = folds.load(one)
    plan = cell_networks.plan(one, folds=2, runs=2)
    other = folds.test_folds(replace(table, y=table.y + 1), tests)
    assert not Chunks.of(one, other, plan).finished()
    (name,) = set_aside(one)
    assert name.endswith("-data")


def test_whole_chunks_stay_when_runs_are_added(study, ray_is_up, monkeypatch):
    monkeypatch.setattr("pipeline.regression.chunks.SIZE", 2)
    one = train("deterministic")
    table, tests = folds.load(one)
    parts = folds.test_folds(table, tests)
    more = replace(one, experiment=replace(one.experiment, runs=3))
    chunks = Chunks.of(more, parts, cell_networks.plan(more, folds=2, runs=3))
    assert len(chunks.parts) == 3 and list(chunks.finished()) == [0, 1]


def test_busy_counts_overlaps_once_and_pauses_not_at_all():
    assert training.busy([(0, 4), (1, 3), (3, 6), (10, 11)]) == 7


def test_fewer_folds_than_the_data_have_are_not_complete(study, ray_is_up):
    make_study(study, limits={"folds": 1, "runs": 1})
    one = train("deterministic")
    report = json.loads((one.model / "training.json").read_text())
    assert (report["folds"], report["runs"], report["complete"]) == (1, 1, False)


def test_auto_compiles_what_is_long_enough_where_there_is_a_compiler(study, monkeypatch):
    small, parts = cell("mnvi"), folds.test_folds(*folds.load(cell("mnvi")))
    steps = small.experiment.epochs * -(-len(parts[0].y) // small.experiment.batch_size)
    many = [cell_networks.Replica(0, run) for run in range(-(-compiling.WORTH // steps))]

    def wanted(choice, plan):
        return compiling.wanted(replace(small, resources=replace(small.resources, compile=choice)), parts, plan)

    with monkeypatch.context() as patched:
        patched.setattr(compiler, "available", lambda: True)
        assert (wanted("auto", many[:1]), wanted("auto", many[:-1]), wanted("auto", many)) == (False, False, True)
    assert (wanted(True, many[:1]), wanted(False, many)) == (True, False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert wanted("auto", many) is False


def test_chunks_that_were_trained_without_the_compiler_are_not_mixed_with_others(study, ray_is_up, monkeypatch):
    one = replace(cell("deterministic"), resources=replace(cell("deterministic").resources, compile="auto"))
    table, tests = folds.load(one)
    parts, plan = folds.test_folds(table, tests), cell_networks.plan(one, folds=2, runs=2)
    chunks = Chunks.of(one, parts, plan)
    chunks.save(0, {"losses": torch.zeros(1)})
    assert not chunks.compiled and chunks.finished()
    monkeypatch.setattr(compiling, "wanted", lambda *_: True)
    assert Chunks.of(one, parts, plan).compiled and not Chunks.of(one, parts, plan).finished()
