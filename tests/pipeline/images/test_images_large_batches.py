"""Batches and learning rates for many workers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from image_study import make_cell, make_job

from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.images import large_batches, loop
from pipeline.images.group import Group
from pipeline.params import Cell


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cell(workers: int, resources: dict[str, Any] | None = None, **recipe: Any) -> Cell:
    return make_cell("deterministic", experiment=recipe, resources={"workers": workers, **(resources or {})})


def test_by_default_all_workers_share_the_recipes_batch() -> None:
    one = cell(4)
    assert large_batches.scaled(one) == one.experiment
    assert large_batches.warmth(one, 0, 0, 10) == 1.0


def test_the_rate_grows_with_the_batch() -> None:
    scaled = large_batches.scaled(cell(4, images_per_worker=6))  # the recipe: 8 images, 1e-3
    assert scaled.batch_size == 24 and scaled.learning_rate == pytest.approx(3e-3)
    assert jobs.steps(make_job(cell(4, images_per_worker=6))) == 1  # of 24 images


def test_warm_up_rises_from_the_recipes_rate_to_the_scaled_one() -> None:
    one = cell(4, images_per_worker=6, warmup=2)
    factors = [large_batches.warmth(one, epoch, step, 5) for epoch in range(3) for step in range(5)]
    assert factors[0] == pytest.approx(1 / 3 + 2 / 3 * 0.1) and factors[9:] == [1.0] * 6
    assert torch.tensor(factors[:10]).diff().allclose(torch.tensor(2 / 3 / 10))


def test_training_steps_with_the_warm_rate_and_schedules_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = cell(2, images_per_worker=8, warmup=2, epochs=3, milestones=[2], gamma=0.1, optimizer="sgd")
    job, used = make_job(one), []
    step = torch.optim.SGD.step

    def noted(self: torch.optim.SGD, *arguments: Any) -> Any:
        used.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    whole = loop.run(job, Group())
    steps = jobs.steps(job)  # 24 images in batches of 16
    expected = [2e-3 * (0.5 + 0.5 * number / (2 * steps)) for number in range(1, 2 * steps + 1)] + [2e-4] * steps
    assert used == pytest.approx(expected)
    assert [epoch["learning_rate"] for epoch in whole.history] == pytest.approx([2e-3, 2e-3, 2e-4])
    stopped = dataclasses.replace(make_job(one, "stopped"), checkpoint_steps=1)
    answers = iter([False] * 3 + [True])
    loop.run(stopped, Group(), should_stop=lambda: next(answers))
    found = loop.run(stopped, Group())
    assert all(torch.equal(found.best_weights[name], value) for name, value in whole.best_weights.items())


def test_workers_with_few_images_get_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    large_batches.say_if_small(cell(1), 1)
    large_batches.say_if_small(cell(2, images_per_worker=32), 2)
    large_batches.say_if_small(cell(2, sync_batch_norm=True), 2)
    assert capsys.readouterr().err == ""
    large_batches.say_if_small(cell(2), 2)
    assert "2 workers share a batch of 8, 4 images each" in capsys.readouterr().err


@pytest.mark.parametrize("resources", [{"accumulate": 2}, {"compile": True}])
def test_batch_norm_over_workers_refuses_what_it_cannot_do(resources: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match=r"sync_batch_norm: true does not go with resources\.(accumulate|compile)"):
        loop.run(make_job(cell(1, resources, sync_batch_norm=True)), Group())
