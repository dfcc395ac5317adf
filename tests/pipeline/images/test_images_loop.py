"""The loop in one process and in two, left alone and interrupted."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from image_study import make_cell, make_job
from torch._dynamo.testing import CompileCounterWithBackend
from two_workers import together

import mnvi
from pipeline.data.imagesets import load_images
from pipeline.errors import Diverged, StudyError
from pipeline.images import job as jobs
from pipeline.images import loop
from pipeline.images.checkpoints import Checkpoints
from pipeline.images.group import Group
from pipeline.images.job import Job
from pipeline.images.loop import Loop, Position
from pipeline.params.settings import OPTIMIZERS


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


VALIDATE_3 = {"validation_examples": 3}


class Interrupted(Exception):
    pass


def run(job: Job, stop_after: int | None = None) -> Position:
    """Trains; raises Interrupted before step number ``stop_after``, counted over epochs."""
    asked = iter(range(10**6))

    def interrupt() -> bool:
        if next(asked) == stop_after:
            raise Interrupted
        return False

    return loop.run(job, Group(), should_stop=interrupt)


def without_time(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in epoch.items() if key not in ("seconds", "waiting", "workers")}
        for epoch in history
    ]


def assert_same(found: Position, expected: Position) -> None:
    assert without_time(found.history) == without_time(expected.history)
    assert found.best_epoch == expected.best_epoch
    for name, value in expected.best_weights.items():
        assert torch.equal(found.best_weights[name], value), name


def last_weights(job: Job) -> dict[str, torch.Tensor]:
    state = Checkpoints(job.state).load()
    assert state is not None
    weights: dict[str, torch.Tensor] = state["objective"]
    return weights


@pytest.mark.parametrize("method", ("mnvi", "mc_dropout", "deterministic"))
def test_training_lowers_the_loss(method: str) -> None:
    history = run(make_job(make_cell(method, experiment={"epochs": 4}))).history
    assert [epoch["epoch"] for epoch in history] == [1, 2, 3, 4]
    assert history[-1]["nll"] < 0.7 * history[0]["nll"]
    assert (history[0]["kl"] > 0) == (method == "mnvi")


@pytest.mark.parametrize("method, stop_after", (("mnvi", 1), ("mnvi", 7), ("mc_dropout", 3)))
def test_an_interrupted_run_ends_as_an_undisturbed_one(method: str, stop_after: int) -> None:
    cell = make_cell(method)
    undisturbed = make_job(cell, "undisturbed")
    expected = run(undisturbed)
    job = dataclasses.replace(make_job(cell, "interrupted"), checkpoint_steps=2)
    with pytest.raises(Interrupted):
        run(job, stop_after)
    torch.manual_seed(stop_after)  # another process has another history of random numbers
    assert_same(run(job), expected)
    for name, value in last_weights(undisturbed).items():
        assert torch.equal(last_weights(job)[name], value), name


def test_a_finished_run_reports_its_epochs_once_more_and_trains_no_step() -> None:
    job = make_job(make_cell())
    expected = run(job)
    seen: list[dict[str, Any]] = []

    def never() -> bool:
        raise AssertionError("a step was taken")

    found = loop.run(job, Group(), seen.append, never)
    assert_same(found, expected)
    assert seen == expected.history


def test_a_run_that_is_told_to_stop_goes_on_later() -> None:
    cell = make_cell()
    expected = run(make_job(cell, "undisturbed"))
    job = make_job(cell, "stopped")
    asked = iter([False] * 4 + [True])
    assert not loop.run(job, Group(), should_stop=lambda: next(asked)).finished
    assert_same(run(job), expected)


def test_a_corrupt_checkpoint_makes_way_for_the_one_before(capfd: pytest.CaptureFixture[str]) -> None:
    cell = make_cell()
    expected = run(make_job(cell, "undisturbed"))
    job = make_job(cell, "corrupt")
    with pytest.raises(Interrupted):
        run(job, 7)
    newest, before = Checkpoints(job.state).paths()
    newest.write_bytes(newest.read_bytes()[:1000])
    assert_same(run(job), expected)
    said = capfd.readouterr().err
    assert str(newest) in said and "checkpoint before it" in said and before.name != newest.name


def test_a_diverging_loss_names_epoch_step_and_last_good_checkpoint() -> None:
    cell = make_cell(
        "deterministic",
        experiment={"optimizer": "sgd", "learning_rate": 1e-3, "clip": None, "milestones": [1], "gamma": 1e30},
    )
    job = make_job(cell)
    with pytest.raises(StudyError, match=r"loss became (nan|inf) in epoch 2, step [23]; .*checkpoint-00001-0000000.pt"):
        run(job)
    weights = last_weights(job)
    assert all(bool(value.isfinite().all()) for value in weights.values())


ONE_WILD_STEP: dict[str, Any] = {
    "experiment": {"optimizer": "sgd", "learning_rate": 1e30, "clip": None},
    "limits": {"steps_per_epoch": 1},
}
NO_ANSWER = "outputs for validation images are not finite after epoch 1; there is no checkpoint yet"


@pytest.mark.parametrize("method", ("deterministic", "mnvi", "mc_dropout"))
def test_divergence_in_the_last_step_of_an_epoch_is_found_in_validation(method: str) -> None:
    with pytest.raises(Diverged, match=NO_ANSWER):
        run(make_job(make_cell(method, **ONE_WILD_STEP)))


def diverge_together(rank: int, job: Job, folder: Path) -> None:
    try:
        train_without_noise(job, Group.joined(torch.device("cpu")))
    except Diverged as error:
        (folder / f"rank-{rank}").write_text(str(error))


@pytest.mark.slow
def test_every_worker_says_so_even_if_only_one_saw_it(tmp_path: Path) -> None:
    # One validation image is the first worker's; the other has none.
    limits = {**ONE_WILD_STEP["limits"], "validation_examples": 1}
    job = make_job(make_cell("deterministic", experiment=ONE_WILD_STEP["experiment"], limits=limits))
    together(diverge_together, tmp_path / "meeting", job, tmp_path)
    assert all(NO_ANSWER in (tmp_path / f"rank-{rank}").read_text() for rank in range(2))


def test_patience_ends_training_early_and_the_best_weights_are_kept() -> None:
    cell = make_cell("deterministic", experiment={"epochs": 9, "patience": 1, "learning_rate": 0.02, "milestones": []})
    found = run(make_job(cell))
    scores = [epoch["validation_nll"] for epoch in found.history]
    assert found.finished and len(scores) < 9
    assert found.best_epoch == 1 + scores.index(min(scores)) == len(scores) - 1


@pytest.mark.parametrize(("selection", "best"), [("nll", 2), ("error", 4)])
def test_the_best_epoch_is_chosen_as_selection_says(monkeypatch: pytest.MonkeyPatch, selection: str, best: int) -> None:
    found = [(1.0, 0.5), (0.5, 0.3), (0.6, 0.2), (0.55, 0.2), (0.7, 0.2)]  # nll and error, epoch after epoch
    coming = iter(found)
    monkeypatch.setattr(Loop, "_validate", lambda loop: next(coming))
    at = run(make_job(make_cell("deterministic", experiment={"epochs": 5, "milestones": [], "selection": selection})))
    assert at.best_epoch == best
    assert (at.best_score, at.best_error) == found[best - 1]


def test_the_first_validation_images_alone_are_looked_at_if_so_asked() -> None:
    whole = run(make_job(make_cell("deterministic"), "whole"))
    part = run(make_job(make_cell("deterministic", limits=VALIDATE_3), "part"))
    assert {epoch["validation_error"] * 3 for epoch in part.history} <= {0.0, 1.0, 2.0, 3.0}
    assert [epoch["loss"] for epoch in part.history] == [epoch["loss"] for epoch in whole.history]
    assert [epoch["validation_nll"] for epoch in part.history] != [epoch["validation_nll"] for epoch in whole.history]


def test_weight_decay_gives_way_to_the_kl() -> None:
    def decay(method: str) -> float:
        cell = make_cell(method, experiment={"weight_decay": 0.1})
        job = make_job(cell)
        images = load_images(job.data.folder, "train")
        built = Loop(job, Group(), jobs.objective(job), images, images)
        return float(built.optimizer.param_groups[0]["weight_decay"])

    assert (decay("mnvi"), decay("deterministic")) == (0.0, 0.1)


@pytest.mark.parametrize("optimizer", OPTIMIZERS["classification"])
def test_every_optimiser_that_settings_allow_trains(optimizer: str) -> None:
    job = make_job(make_cell("deterministic", experiment={"optimizer": optimizer, "epochs": 2}))
    history = run(job).history
    assert history[1]["nll"] < history[0]["nll"]
    state = Checkpoints(job.state).load()
    assert state is not None
    assert state["optimizer"]["param_groups"][0].get("amsgrad", None) == {"adam": False, "amsgrad": True}.get(optimizer)


@pytest.mark.parametrize("precision", ("bfloat16", "float16"))
def test_half_precision_trains(precision: str) -> None:
    cell = make_cell("mnvi", experiment={"epochs": 2}, resources={"precision": precision})
    history = run(make_job(cell)).history
    assert history[1]["loss"] < history[0]["loss"]


def sampling_free(job: Job) -> mnvi.Objective:
    """The objective without noise of sampling, which is every worker's own."""
    objective = jobs.objective(job)
    likelihood = mnvi.CategoricalLikelihood(approximation="second_order")
    elbo = mnvi.ELBO(likelihood, objective.elbo.num_data, objective.elbo.kappa)
    assert isinstance(objective.net, torch.nn.Module)
    return mnvi.Objective(objective.net, elbo)


def train_without_noise(job: Job, group: Group) -> Position:
    training, validation = load_images(job.data.folder, "train"), load_images(job.data.folder, "validation")
    return Loop(job, group, sampling_free(job), training, validation).run(lambda epoch: None, lambda: False)


def assert_trained_alike(found: Position, expected: Position) -> None:
    """Up to the order in which floats were added."""
    for one, two in zip(expected.history, found.history, strict=True):
        for figure in ("loss", "nll", "kl", "validation_nll"):
            assert two[figure] == pytest.approx(one[figure], rel=1e-4), figure
    for name, value in expected.best_weights.items():
        torch.testing.assert_close(found.best_weights[name], value, rtol=1e-3, atol=1e-5)


# SGD, as Adam makes a large step of a gradient that is only rounding; a large κ makes a KL that counts twice stand out.
PLAIN = {"optimizer": "sgd", "learning_rate": 1e-2, "momentum": 0.9, "nesterov": True, "clip": None}
LARGE = {"kappa_over_n": 1e-6}


def assert_kl_stands_out(position: Position, kappa_over_n: float = LARGE["kappa_over_n"]) -> None:
    first = position.history[0]
    assert first["kl"] * kappa_over_n > 0.1 * first["nll"]


@pytest.mark.parametrize("method", ("deterministic", "mnvi"))
def test_accumulation_changes_nothing_but_memory(method: str) -> None:
    def trained(accumulate: int) -> Position:
        cell = make_cell(method, experiment=PLAIN, resources={"accumulate": accumulate})
        cell = cell.with_hyperparameters(LARGE if method == "mnvi" else {})
        return train_without_noise(make_job(cell, f"in-{accumulate}"), Group())

    whole, parts = trained(1), trained(3)
    assert_trained_alike(parts, whole)
    if method == "mnvi":
        assert_kl_stands_out(whole)


@pytest.mark.slow
def test_a_compiled_network_trains_as_a_plain_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"network": "image_study:small_network", "epochs": 2}  # compiling LeNet takes a minute
    kappa_over_n = 2e-4  # a small network's KL is small
    limits = {"train_examples": 23}  # the last batch has 7 images instead of 8

    def trained(compiled: bool) -> Position:
        cell = make_cell("mnvi", experiment={**PLAIN, **small}, resources={"compile": compiled}, limits=limits)
        cell = cell.with_hyperparameters({"kappa_over_n": kappa_over_n})
        return train_without_noise(make_job(cell, f"compiled-{compiled}"), Group())

    plain = trained(False)
    compiler = CompileCounterWithBackend("inductor")

    def compile_and_count(self: torch.nn.Module, **how: Any) -> None:
        torch.nn.Module.compile(self, backend=compiler, **how)

    monkeypatch.setattr(mnvi.Objective, "compile", compile_and_count)
    assert_trained_alike(trained(True), plain)
    assert compiler.frame_count == 1  # none would compare two plain networks; a second one is for the last batch
    assert_kl_stands_out(plain, kappa_over_n)


def train_together(rank: int, job: Job) -> None:
    train_without_noise(job, Group.joined(torch.device("cpu")))


@pytest.mark.slow
def test_two_workers_train_as_one_does(tmp_path: Path) -> None:
    # 23 images: the last global batch of 7 is shared 4 to 3.
    cell = make_cell("mnvi", experiment=PLAIN, limits={"train_examples": 23}).with_hyperparameters(LARGE)
    alone = train_without_noise(make_job(cell, "one"), Group())
    job = make_job(cell, "two")
    together(train_together, tmp_path / "meeting", job)
    state = Checkpoints(job.state).load()
    assert state is not None
    found = Position(**state["position"])
    assert_trained_alike(found, alone)
    assert_kl_stands_out(alone)
    assert math.isfinite(found.best_score)
