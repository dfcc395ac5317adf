"""The setting of the measurements: cells of the study, random images, and a core for every worker."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pipeline.images.job import Data, Job
from pipeline.params import Cell
from pipeline.params.reading import Params, parse, read
from pipeline.params.selecting import expanded

PROJECT = Path(__file__).parent.parent.parent
RESULTS = PROJECT / "benchmarks" / "results"


def images_study() -> Params:
    """Every cell of the paper's Table 2."""
    raw = parse(PROJECT / "params.yaml")
    return read({**raw, "study": expanded(parse(PROJECT / "studies" / "images.yaml")["study"], raw)})


def with_batch(cell: Cell, size: int) -> Cell:
    return replace(cell, experiment=replace(cell.experiment, batch_size=size))


def job(cell: Cell, data: Path, state: Path) -> Job:
    return Job(cell, seed=0, data=Data(data, digest="made up"), state=state)


def write_images(folder: Path, shape: tuple[int, int, int], count: int, classes: int = 10) -> Path:
    """Writes images of noise in the layout of `pipeline.prepare`, without a validation part."""
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    for part, rows in (("train", count), ("test", 2)):
        np.save(folder / f"{part}_images.npy", numbers.integers(0, 256, (rows, *shape), dtype=np.uint8))
        np.save(folder / f"{part}_labels.npy", numbers.integers(0, classes, rows))
    np.save(folder / "train_index.npy", np.arange(count))
    np.save(folder / "validation_index.npy", np.arange(0))
    summary = {
        "name": folder.name,
        "kind": "images",
        "digest": "made up",
        "source": "made up",
        "rows": {"train": count, "test": 2},
        "validation": 0,
        "classes": [str(label) for label in range(classes)],
        "shape": list(shape),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def pin(rank: int) -> None:
    """Gives torch one thread, and pins this process with all its threads, including senders, to one core."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {cores[rank % len(cores)]})
