"""Images a second of every worker, and what a GPU adds to them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from image_study import make_cell, make_job

from pipeline.images import loop, pace, workers
from pipeline.images.batches import Part
from pipeline.images.group import Group


def part(images: int) -> Part:
    return Part(torch.zeros(images, 1), torch.zeros(images, dtype=torch.long), 1.0)


def test_each_worker_counts_its_own_images(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 20.0, 24.0])
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(clock))
    group = Group(rank=1, size=3)
    monkeypatch.setattr(Group, "sum", lambda self, table: table)  # the other workers send nothing
    measured = pace.Pace(group)
    measured.count([part(3), part(3)])
    measured.begin()
    measured.count([part(5), part(3)])
    measured.sample()
    assert measured.of_all() == [{"images_per_second": speed} for speed in (0.0, 2.0, 0.0)]


def test_a_gpu_has_memory_and_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter([40.0, 60.0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", Mock())
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3_000_000_000)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: next(numbers))
    measured = pace.Pace(Group())
    measured.on_gpu = measured._knows_utilisation = True
    measured.begin()
    measured.sample()
    measured.sample()
    (found,) = measured.of_all()
    assert (found["gpu_memory_gb"], found["gpu_utilisation"]) == (3.0, 50.0)


def test_training_reports_it_and_mlflow_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    epochs: list[loop.Epoch] = []
    loop.run(make_job(make_cell(experiment={"epochs": 1, "milestones": []})), Group(), epochs.append)
    (epoch,) = epochs
    (speed,) = [one["images_per_second"] for one in epoch["workers"]]
    assert 0 < speed < 24 / epoch["seconds"] * 10
    assert workers.figures({**epoch, "workers": [{"images_per_second": 2.0}, {"images_per_second": 3.0}]}).items() >= {
        ("worker 0/images_per_second", 2.0),
        ("worker 1/images_per_second", 3.0),
    }
