"""A small study of images for tests: two classes that differ in where they are bright, and LeNet."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tiny_study import RESOURCES
from torch import nn

import mnvi
from pipeline import files, params
from pipeline.images import job as jobs
from pipeline.images import objectives, workers
from pipeline.images.job import Job
from pipeline.params import Cell
from pipeline.params.settings import ClassificationLimits

LIMITS = [field.name for field in fields(ClassificationLimits)]
METHODS = {
    "mnvi": {
        "hyperparameters": {"kappa_over_n": 1.0e-6, "prior_variance": 1.0e-3},
        "grid": {"kappa_over_n": [1.0e-6, 1.0e-7], "prior_variance": [1.0e-2, 1.0e-3]},
    },
    "mc_dropout": {"hyperparameters": {"dropout": 0.1}, "grid": {"dropout": [0.5, 0.1]}},
    "deterministic": {},
}


def write_images(folder: Path, *, train: int = 24, validation: int = 8, test: int = 24, seed: int = 0) -> None:
    """A data set as `prepare` writes it."""
    folder.mkdir(parents=True)
    digest = hashlib.sha256()
    numbers = np.random.default_rng(seed)
    for part, count in (("train", train + validation), ("test", test)):
        labels = np.arange(count, dtype=np.int64) % 2
        images = numbers.integers(0, 150, (count, 1, 28, 28), dtype=np.uint8)
        images[labels == 1, :, :14] += 60
        np.save(folder / f"{part}_images.npy", images)
        np.save(folder / f"{part}_labels.npy", labels)
        digest.update(images.tobytes() + labels.tobytes())
    np.save(folder / "train_index.npy", np.arange(train))
    np.save(folder / "validation_index.npy", np.arange(train, train + validation))
    summary = {
        "name": folder.name,
        "kind": "images",
        "digest": digest.hexdigest(),
        "source": "generated",
        "rows": {"train": train + validation, "test": test},
        "validation": validation,
        "classes": ["dark", "bright"],
        "shape": [1, 28, 28],
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def small_network(num_classes: int, in_channels: int) -> nn.Module:
    """Layers of every kind that LeNet has, for tests whose time grows with the network."""
    conv, linear = nn.Conv2d(in_channels, 2, 5, stride=4), nn.Linear(2 * 3 * 3, num_classes)
    return nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), linear)


def make_cell(method: str = "mnvi", *, experiment: dict[str, Any] | None = None, **changes: Any) -> Cell:
    """A cell of a study in the working folder, whose data are written if they are not there.

    Args:
        experiment: keys of the experiment.
        changes: `study`, `resources`, `limits` and `datasets`, dictionaries that change these sections.
    """
    for seed, name in enumerate(("mnist", "fashion_mnist")):
        if not (Path("data") / name).exists():
            write_images(Path("data") / name, seed=seed)
    limits = {
        "regression": {"runs": None, "folds": None, "epochs": None, "search_epochs": None},
        "classification": {**dict.fromkeys(LIMITS), "seeds": 2, **changes.get("limits", {})},
    }
    settings = {
        "study": {
            "name": "tests",
            "results": "results",
            "preset": "release",
            "data": ["mnist", "fashion_mnist"],
            "cells": {"lenet": {"experiment": "lenet-mnist", "data": "mnist", "method": method}},
            "search": [],
            "searcher": "grid",
            "trials": 4,
            "missing_data": "stop",
            "limits": limits,
            **changes.get("study", {}),
        },
        "resources": {**RESOURCES, **changes.get("resources", {})},
        "datasets": {
            **{name: {"kind": "images", "validation": 8} for name in ("mnist", "fashion_mnist")},
            **changes.get("datasets", {}),
        },
        "experiments": {
            "lenet-mnist": {
                "kind": "classification",
                "data": "mnist",
                "ood": ["fashion_mnist"],
                "network": "lenet",
                "optimizer": "amsgrad",
                "learning_rate": 1.0e-3,
                "weight_decay": 1.0e-5,
                "epochs": 3,
                "batch_size": 8,
                "milestones": [2],
                "gamma": 0.1,
                "clip": 0.1,
                "augmentation": "none",
                "normalisation": "mnist",
                "seeds": 2,
                "methods": METHODS,
                **(experiment or {}),
            }
        },
    }
    path = Path("params.yaml")
    path.write_text(yaml.safe_dump(settings))
    return params.load(path).cell("lenet")


def searched(rates: list[float], workers: int = 1, epochs: int = 4, **study: Any) -> Cell:
    """A cell whose learning rate is searched; rates of nearly nothing fall behind at once."""
    methods = {**METHODS, "deterministic": {"grid": {"learning_rate": rates}}}
    return make_cell(
        "deterministic",
        experiment={"methods": methods, "epochs": epochs, "milestones": [], "clip": None},
        resources={"workers": workers},
        study={"search": ["lenet"], **study},
    )


def make_job(cell: Cell, name: str = "seed-0", seed: int = 0) -> Job:
    return Job(cell, seed, jobs.data_of(cell), cell.state("train").absolute() / "progress" / name)


def undisturbed(job: Job) -> dict[str, torch.Tensor]:
    """The weights that the job ends with, trained in this process."""
    threads = torch.get_num_threads()
    position = workers.alone(job, lambda epoch: None)
    torch.set_num_threads(threads)
    return position.best_weights


def write_best(cell: Cell) -> None:
    """best.yaml, as `tune` writes it for a cell that is not searched."""
    cell.tune.mkdir(parents=True, exist_ok=True)
    best = {"source": "params", "hyperparameters": cell.hyperparameters, "objective": None, "trials": 0}
    (cell.tune / "best.yaml").write_text(yaml.safe_dump(best))


def trained(method: str, seeds: int = 2, **changes: Any) -> Cell:
    """A cell as `train` leaves it, with networks that have not learnt much."""
    cell = make_cell(method, **changes)
    for seed in range(seeds):
        net = jobs.objective(make_job(cell, seed=seed)).net
        assert isinstance(net, torch.nn.Module)
        files.write_tensors(cell.model / f"seed-{seed}" / "model.pt", net.state_dict())
    training = {"seeds": seeds, "complete": True, "seconds": 1.0, "num_parameters": objectives.num_parameters(net)}
    files.write_json(cell.model / "training.json", training)
    files.write_yaml(cell.tune / "best.yaml", {"source": "params", "hyperparameters": cell.hyperparameters})
    return cell


def probabilities(cell: Cell, seed: int, folder: str) -> torch.Tensor:
    net = mnvi.models.lenet(num_classes=2).eval()
    net.load_state_dict(torch.load(cell.model / f"seed-{seed}" / "model.pt", weights_only=True))
    pixels = torch.from_numpy(np.load(Path("data") / folder / "test_images.npy"))
    with torch.no_grad():
        return net((pixels / 255 - 0.1307) / 0.3081).double().softmax(-1)
