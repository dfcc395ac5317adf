"""Training with Ray Train: whole, with other settings, and short of machines."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from commands import PATIENCE, tracked, tracked_parameters
from image_study import make_cell, make_job, probabilities, undisturbed, write_best
from tracking_cases import best_model, history, runs

from pipeline import files, tracking
from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.images import training, workers
from pipeline.images.checkpoints import Checkpoints
from pipeline.images.job import Job
from pipeline.tracking.sender import leftovers


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_is_up")
def test_every_seed_is_trained_once_tracked_and_written() -> None:
    cell = make_cell("deterministic", experiment={"epochs": 2})
    write_best(cell)
    training.run(cell)
    summary = json.loads((cell.model / "training.json").read_text())
    assert summary["seeds"] == 2 and summary["epochs"] == 2 and summary["steps"] == 3 and summary["complete"]
    written = [torch.load(cell.model / f"seed-{seed}" / "model.pt", weights_only=True) for seed in range(2)]
    for seed, weights in enumerate(written):
        expected = undisturbed(make_job(cell, f"undisturbed-{seed}", seed))
        assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert not torch.equal(written[0]["fc2.weight"], written[1]["fc2.weight"])
    pixels = np.load(cell.data / "test_images.npy")
    answer = best_model("lenet-mnist-deterministic").predict(pixels)
    expected = [probabilities(cell, seed, "mnist").numpy() for seed in range(2)]
    assert any(np.allclose(answer["probs"], probs, atol=1e-4) for probs in expected)
    names = {"train deterministic", "train deterministic seed 0", "train deterministic seed 1"}
    assert tracked() == dict.fromkeys(names, "FINISHED")
    shown = tracked_parameters("train deterministic")
    recipe = cell.experiment
    expected = {
        "optimizer": f"{recipe.optimizer}",
        "learning_rate": f"{recipe.learning_rate}",
        "epochs": "2",
        "seeds": "2",
    }
    assert shown.items() >= {**expected, "batch_size": f"{recipe.batch_size}", "clip": f"{recipe.clip}"}.items()
    assert shown.items() >= {"preset": "release", "resources.precision": "float32", "resources.workers": "1"}.items()

    files.remove(cell.model)  # as DVC does before it runs a stage
    before = time.monotonic()
    training.run(cell)
    again = torch.load(cell.model / "seed-1" / "model.pt", weights_only=True)
    assert all(torch.equal(again[name], value) for name, value in written[1].items())
    trained = [path.stat().st_mtime for path in cell.state("train").glob("progress/seed-*/checkpoint-*.pt")]
    assert trained and max(trained) < time.time() - (time.monotonic() - before)
    assert children_of("train deterministic") == [["0", "1"], ["0", "1"]]  # of the first run and of this one


def children_of(name: str) -> list[list[str]]:
    """The seeds that the children of each run of this name show as their parameter."""
    found = runs("lenet-mnist")
    parents = [run.info.run_id for run in found if run.info.run_name == name]
    seeds = [(run.data.tags.get("mlflow.parentRunId"), run.data.params.get("seed", "")) for run in found]
    return [sorted(seed for parent, seed in seeds if parent == one) for one in parents]


def node(cpus: float, gpus: float = 0.0, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus, "memory": 1e9} | ({"GPU": gpus} if gpus else {})}


@pytest.mark.parametrize(
    ("nodes", "resources", "expected"),
    [
        ([node(4), node(4)], {"workers": 2, "cpus_per_worker": 3}, (2, 1)),
        ([node(3), node(3), node(0)], {"workers": 1, "cpus_per_worker": 2}, (1, 2)),  # not 3 of 6 CPUs
        ([node(8), node(2, gpus=1)], {"workers": 1, "gpu": True, "cpus_per_worker": 2}, (1, 1)),
        ([node(4), node(4, alive=False)], {"workers": 2, "cpus_per_worker": 4, "allow_fewer_workers": True}, (1, 1)),
    ],
)
def test_workers_are_counted_node_by_node(
    monkeypatch: pytest.MonkeyPatch, nodes: list[Any], resources: dict[str, Any], expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert workers.affordable(make_cell(resources=resources)) == expected


@pytest.mark.parametrize("fewer", [False, True])
def test_workers_that_fit_on_no_node_are_said(monkeypatch: pytest.MonkeyPatch, fewer: bool) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [node(2), node(3)])
    cell = make_cell(resources={"cpus_per_worker": 4, "allow_fewer_workers": fewer})
    with pytest.raises(StudyError, match="1 workers need 4 CPU, but the cluster has 5 CPU on 2 nodes, where 0 fit"):
        workers.affordable(cell)


def test_a_training_that_starts_anew_keeps_what_mlflow_has_not_got(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.setenv("MNVI_TRACKING_WAIT", "0")
    cell = make_cell()
    before = replace(cell, experiment=replace(cell.experiment, learning_rate=1.0))
    Checkpoints(training.progress_of(before) / "seed-0").save({}, 1, 0)
    training.progress_of(cell)
    job = make_job(cell)
    with (
        tracking.run(cell, "train", state=cell.state("train").absolute()) as parent,
        training._tracked(job, parent) as seed,
    ):
        seed.metrics({"loss": 1.0}, step=1)
    assert training._finished(job) is None
    assert len([*cell.state("train").glob("set-aside/*-settings-learning_rate/seed-0/checkpoint-*.pt")]) == 1
    assert sorted(leftovers(Path("work").absolute())) == [parent.state, seed.state]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_is_up")
def test_a_training_with_other_settings_has_a_curve_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/mlflow.db")
    monkeypatch.setenv("MNVI_STORAGE", str(Path("storage").absolute()))
    Path("dvc.lock").write_text("tune")  # which nobody writes when a stage is run by hand
    expected = []
    for rate in (1e-3, 1e-2):
        cell = make_cell("deterministic", experiment={"epochs": 1, "learning_rate": rate}, limits={"seeds": 1})
        write_best(cell)
        training.run(cell)
        (epoch,) = json.loads((cell.model / "seed-0" / "history.json").read_text())
        expected.append([(1, epoch["loss"])])
    parents = [run for run in runs("lenet-mnist") if run.info.run_name == "train deterministic"]
    seeds = [run for run in runs("lenet-mnist") if run.info.run_name == "train deterministic seed 0"]
    assert [run.data.params["learning_rate"] for run in parents] == ["0.001", "0.01"]
    assert [history(run.info.run_id, "loss") for run in seeds] == expected


WAITS = "training waits for another node"
ADVICE = "With resources.allow_fewer_workers: true the same command resumes with fewer"


@pytest.mark.parametrize(
    ("resources", "trainings", "left", "consequence"),
    [
        (
            {"workers": 2},
            1,
            1,
            f"{WAITS}. {ADVICE}",
        ),
        ({"workers": 2}, 1, 0, WAITS),  # nor would fewer fit
        ({"workers": 2, "allow_fewer_workers": True}, 1, 0, WAITS),
        (
            {"workers": 2, "allow_fewer_workers": True},
            1,
            1,
            "training resumes with 1 from the last checkpoint, on the same global batches",
        ),
        ({"workers": 1}, 4, 2, "2 of 4 trainings resume from their last checkpoints, and the others after them"),
        (
            {"workers": 2, "allow_fewer_workers": True},
            2,
            2,
            "1 of 2 trainings resume from their last checkpoints, and the others after them",
        ),
        (
            {"workers": 2, "allow_fewer_workers": True},
            2,
            3,
            "all trainings resume from their last checkpoints, one with fewer workers on the same global batches",
        ),
    ],
)
def test_what_a_lost_node_means_is_said_once_and_its_return_too(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    resources: dict[str, Any],
    trainings: int,
    left: int,
    consequence: str,
) -> None:
    shortage = workers.Shortage(make_cell(resources={**resources, "cpus_per_worker": 2}))
    needed = trainings * resources["workers"]
    for alive in (True, True, False, False, True, True):
        monkeypatch.setattr(ray, "nodes", lambda alive=alive: [node(2 * left + 1), node(2 * needed, alive=alive)])
        shortage.look(trainings, resources["workers"])
    lost = f"lenet: a node is lost; {needed} workers are needed, {left} fit on the 1 available nodes, so "
    back = f"lenet: there is room for {needed} workers again, so training continues with them"
    assert capfd.readouterr().err.splitlines() == [lost + consequence, back]


def test_trainings_that_end_are_no_node_that_comes_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shortage = workers.Shortage(make_cell(resources={"workers": 1}))
    monkeypatch.setattr(ray, "nodes", lambda: [node(2)])
    for trainings in (4, 3, 2, 1):
        shortage.look(trainings, 1)
    (said,) = capfd.readouterr().err.splitlines()
    assert "a node is lost; 4 workers are needed" in said


def test_every_node_that_is_lost_or_back_is_told_as_long_as_there_are_too_few(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shortage = workers.Shortage(make_cell(resources={"workers": 1}))
    for there_are in (4, 3, 1, 2, 4):
        monkeypatch.setattr(ray, "nodes", lambda there_are=there_are: [node(1)] * there_are)
        shortage.look(4, 1)
    told = [line.partition("; ")[0] for line in capfd.readouterr().err.splitlines()]
    lost, back = "lenet: a node is lost", "lenet: a node is back"
    assert told == [lost, lost, back, "lenet: there is room for 4 workers again, so training continues with them"]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_is_up")
def test_a_model_is_logged_once_and_again_when_it_was_trained_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNVI_STORAGE", str(Path("storage").absolute()))
    Path("dvc.lock").write_text("tune")  # not written after the stage, so that its run goes on
    logged: list[dict[str, torch.Tensor]] = []
    monkeypatch.setattr(training.tracking, "model", lambda run, net, *rest, **more: logged.append(net.state_dict()))

    def train(learning_rate: float) -> dict[str, torch.Tensor]:
        experiment = {"epochs": 1, "learning_rate": learning_rate}
        cell = make_cell("deterministic", experiment=experiment, limits={"seeds": 1})
        write_best(cell)
        weights = undisturbed(Job(cell, 0, jobs.data_of(cell), training.progress_of(cell) / "seed-0"))
        training.run(cell)
        return weights

    expected = [train(rate) for rate in (1e-3, 1e-3, 1e-2)][1:]
    assert len(logged) == 2
    for weights, found in zip(expected, logged, strict=True):
        assert all(torch.equal(found[name], value) for name, value in weights.items())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_is_up")
def test_workers_that_cannot_be_had_and_a_loss_that_diverges_are_said_before_giving_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    greedy = {"workers": 3}
    with pytest.raises(StudyError, match="3 workers need 3 CPU, but the cluster has 2 CPU"):
        workers.affordable(make_cell(resources=greedy))
    assert workers.affordable(make_cell(resources={**greedy, "allow_fewer_workers": True})) == (2, 1)
    assert workers.affordable(make_cell()) == (1, 2)
    recipe = {"optimizer": "sgd", "learning_rate": 1e30, "clip": None, "weight_decay": 0.0}
    monkeypatch.setattr(tracking.runs, "_SOON", PATIENCE)
    cell = make_cell("deterministic", experiment=recipe, limits={"seeds": 2})
    write_best(cell)
    with pytest.raises(StudyError, match=r"loss became .* in epoch 1, step 2; there is no checkpoint yet"):
        training.run(cell)
    name = "train deterministic"
    assert tracked()[name] == "FAILED"
    assert sorted(tracked()[f"{name} seed {seed}"] for seed in range(2)) == ["FAILED", "KILLED"]  # the other one
