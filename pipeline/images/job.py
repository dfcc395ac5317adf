"""One training: a cell with its current hyperparameters, a seed, and the places of its data and state.

Workers run in their own folders and on other machines, so nothing here may be relative to the folder of the stage.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mnvi
from pipeline import blobs, files, storage
from pipeline.blobs import Contents
from pipeline.data import augmentation
from pipeline.data.imagesets import load_images
from pipeline.images import large_batches, objectives
from pipeline.images.batches import Transform
from pipeline.params import Cell
from pipeline.params.settings import ClassificationLimits
from pipeline.storage import Anywhere


@dataclass(frozen=True)
class Data:
    """A prepared data set. With storage, each node fetches it once; otherwise all machines see it under this path.

    Args:
        weights: the file that the cell's networks start from, if it names one.
    """

    path: Path
    digest: str
    contents: Contents | None = None
    weights: Data | None = None

    @property
    def folder(self) -> Path:
        """The folder of the data on this machine."""
        return self.path if self.contents is None else self.contents.here()

    @property
    def file(self) -> Path:
        """The file on this machine, of data that are a single file."""
        return self.path if self.contents is None else self.contents.here() / self.path.name


@dataclass(frozen=True)
class Job:
    """A training.

    Args:
        state: the folder of its checkpoints.
        home: a folder around it that is there as long as storage is; without it nobody waits for a folder.
    """

    cell: Cell
    seed: int
    data: Data
    state: Anywhere
    checkpoint_steps: int = 1000  # an epoch may take hours; these two bound the work that a crash loses
    checkpoint_seconds: float = 300.0
    home: Anywhere | None = None

    @property
    def limits(self) -> ClassificationLimits:
        return self.cell.study.classification


def data_of(cell: Cell) -> Data:
    """The cell's data, with the weights that its networks start from."""
    weights = cell.experiment.weights_file
    return replace(shared(cell.data), digest=digest(cell.data), weights=None if weights is None else shared(weights))


def shared(path: Path) -> Data:
    """A file or folder that workers read. With storage and a cluster it is uploaded, so that nodes can fetch it."""
    root = storage.root() if os.environ.get("RAY_ADDRESS") else None
    name = "." if path.is_dir() else path.name
    return Data(path.absolute(), "", None if root is None else blobs.publish({name: path}, root))


def summary(folder: Path) -> dict[str, Any]:
    """The summary of a data set that `prepare` wrote."""
    found: dict[str, Any] = files.read_json(folder / "summary.json", f"python -m pipeline.prepare {folder.name}")
    return found


def digest(folder: Path) -> str:
    return str(summary(folder)["digest"])


def state_folder(cell: Cell, stage: str) -> Anywhere:
    """The folder of the workers' checkpoints: in storage if there is one, so that any node can resume."""
    root = storage.root()
    return cell.state(stage).absolute() if root is None else root / str(cell.state(stage))


def network(job: Job) -> nn.Module:
    """The job's network, for loading trained weights; it does not read the weights that training starts from."""
    net = objective(job, start=False).net
    assert isinstance(net, nn.Module)
    return net


def objective(job: Job, *, start: bool = True) -> mnvi.Objective:
    """The job's network with the weights that training starts from, and its loss."""
    images = load_images(job.data.folder, "train")
    examples = num_examples(job, len(images))
    cell = job.cell if job.data.weights is None else job.cell.starting_from(job.data.weights.file)
    return objectives.build(
        cell, job.seed, classes=len(images.classes), channels=images.channels, examples=examples, start=start
    )


def num_examples(job: Job, available: int) -> int:
    return min(job.limits.train_examples or available, available)


def steps(job: Job) -> int:
    """Steps per epoch."""
    images = load_images(job.data.folder, "train")
    whole = math.ceil(num_examples(job, len(images)) / large_batches.scaled(job.cell).batch_size)
    return min(job.limits.steps_per_epoch or whole, whole)


def transform(cell: Cell, *, training: bool) -> Transform:
    recipe = cell.experiment
    assert recipe.normalisation is not None  # reading params.yaml requires it
    return augmentation.transform(recipe.augmentation or "none", recipe.normalisation, training)


def example(job: Job) -> Tensor:
    """Two images in the form that a served network takes: bytes, cropped if the recipe crops."""
    images = load_images(job.data.folder, "test")
    return augmentation.as_asked(job.cell.experiment.augmentation or "none", images.take(torch.arange(2)))
