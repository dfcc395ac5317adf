"""One training: a cell with the hyperparameters it has now, a seed, and where its data and its state are."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mnvi
from pipeline import files
from pipeline.data import augmentation, load_images
from pipeline.errors import StudyError
from pipeline.images import networks
from pipeline.images.batches import Transform
from pipeline.params import Cell
from pipeline.params.settings import ClassificationLimits


@dataclass(frozen=True)
class Job:
    """Paths are absolute: workers run in folders of their own, and on other machines."""

    cell: Cell
    seed: int
    data: Path
    state: Path
    fingerprint: str
    checkpoint_steps: int = 1000  # an epoch may take hours; the loss of one is bounded by these two
    checkpoint_seconds: float = 300.0

    @property
    def limits(self) -> ClassificationLimits:
        return self.cell.study.classification


def make(cell: Cell, stage: str, seed: int, state: Path) -> Job:
    text = f"{cell.fingerprint(stage)} {digest(cell.data)} {seed}"
    return Job(cell, seed, cell.data.absolute(), state, hashlib.sha256(text.encode()).hexdigest()[:16])


def summary(cell: Cell) -> dict[str, Any]:
    """Of the cell's data set."""
    made_by = f"python -m pipeline.prepare {cell.dataset.name}"
    found: dict[str, Any] = files.read_json(cell.data / "summary.json", made_by)
    return found


def digest(folder: Path) -> str:
    """Of the data in a folder that `prepare` made."""
    return str(files.read_json(folder / "summary.json", f"python -m pipeline.prepare {folder.name}")["digest"])


def state_folder(cell: Cell, stage: str) -> Path:
    """Where a stage keeps its state: on `resources.storage` if given, which all machines see under this path."""
    storage = cell.resources.storage
    if storage is None:
        return cell.state(stage).absolute()
    if "://" in storage:
        raise StudyError(
            f"resources.storage: {storage!r} is an address; expected a folder that all machines mount, such as an NFS "
            "share, because checkpoints are written as files"
        )
    return Path(storage).absolute() / cell.state(stage)


def objective(job: Job) -> mnvi.Objective:
    """The job's network with the weights that training starts from, and its loss."""
    images = load_images(job.data, "train")
    channels = images.take(torch.tensor([0]))[0].shape[0]
    return networks.build(
        job.cell, job.seed, classes=len(images.classes), channels=channels, examples=num_examples(job, len(images))
    )


def num_examples(job: Job, available: int) -> int:
    return min(job.limits.train_examples or available, available)


def steps(job: Job) -> int:
    """Steps of an epoch."""
    images = load_images(job.data, "train")
    whole = math.ceil(num_examples(job, len(images)) / job.cell.experiment.batch_size)
    return min(job.limits.steps_per_epoch or whole, whole)


def transform(cell: Cell, *, training: bool) -> Transform:
    recipe = cell.experiment
    if recipe.normalisation is None:
        names = ", ".join(augmentation.NORMALISATIONS)
        raise StudyError(f"experiments.{recipe.name}.normalisation: is missing; expected one of {names}")
    return augmentation.transform(recipe.augmentation or "none", recipe.normalisation, training)


def example(job: Job) -> Tensor:
    """Two images as the network takes them."""
    images = load_images(job.data, "test")
    return transform(job.cell, training=False)(images.take(torch.arange(2)), torch.Generator())
