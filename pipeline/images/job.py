"""One training: a cell with the hyperparameters it has now, a seed, and where its data and its state are.

Workers run in folders of their own, and on other machines: nothing here is seen from the folder of the stage.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mnvi
from pipeline import blobs, files, storage
from pipeline.blobs import Contents
from pipeline.data import augmentation, load_images
from pipeline.images import networks
from pipeline.images.batches import Transform
from pipeline.params import Cell
from pipeline.params.settings import ClassificationLimits
from pipeline.storage import Anywhere


@dataclass(frozen=True)
class Data:
    """A prepared data set. Through storage, each node fetches it once; else all machines see it under this path."""

    path: Path
    digest: str
    contents: Contents | None = None

    @property
    def folder(self) -> Path:
        """Where it is on this machine."""
        return self.path if self.contents is None else self.contents.here()


@dataclass(frozen=True)
class Job:
    cell: Cell
    seed: int
    data: Data
    state: Anywhere
    checkpoint_steps: int = 1000  # an epoch may take hours; the loss of one is bounded by these two
    checkpoint_seconds: float = 300.0

    @property
    def limits(self) -> ClassificationLimits:
        return self.cell.study.classification


def data_of(cell: Cell) -> Data:
    """The cell's data, put into storage if there is one and a cluster to fetch them from it."""
    root = storage.root() if os.environ.get("RAY_ADDRESS") else None
    contents = None if root is None else blobs.publish({".": cell.data}, root)
    return Data(cell.data.absolute(), digest(cell.data), contents)


def summary(folder: Path) -> dict[str, Any]:
    """Of the data in a folder that `prepare` made."""
    found: dict[str, Any] = files.read_json(folder / "summary.json", f"python -m pipeline.prepare {folder.name}")
    return found


def digest(folder: Path) -> str:
    return str(summary(folder)["digest"])


def state_folder(cell: Cell, stage: str) -> Anywhere:
    """Where workers keep what they go on from: in storage if there is one, so that any node can."""
    root = storage.root()
    return cell.state(stage).absolute() if root is None else root / str(cell.state(stage))


def objective(job: Job) -> mnvi.Objective:
    """The job's network with the weights that training starts from, and its loss."""
    images = load_images(job.data.folder, "train")
    channels = images.take(torch.tensor([0]))[0].shape[0]
    return networks.build(
        job.cell, job.seed, classes=len(images.classes), channels=channels, examples=num_examples(job, len(images))
    )


def num_examples(job: Job, available: int) -> int:
    return min(job.limits.train_examples or available, available)


def steps(job: Job) -> int:
    """Steps of an epoch."""
    images = load_images(job.data.folder, "train")
    whole = math.ceil(num_examples(job, len(images)) / job.cell.experiment.batch_size)
    return min(job.limits.steps_per_epoch or whole, whole)


def transform(cell: Cell, *, training: bool) -> Transform:
    recipe = cell.experiment
    assert recipe.normalisation is not None  # params.yaml is refused without it
    return augmentation.transform(recipe.augmentation or "none", recipe.normalisation, training)


def example(job: Job) -> Tensor:
    """Two images as a served network takes them: bytes, cropped if the recipe crops."""
    images = load_images(job.data.folder, "test")
    return augmentation.as_asked(job.cell.experiment.augmentation or "none", images.take(torch.arange(2)))
