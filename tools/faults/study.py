"""The study that the campaign disturbs: cells of both kinds, each with a search; two workers train the images."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

ROOT = Path(__file__).parents[2]
CODE = ("mnvi", "pipeline")
COMMAND = ("python", "-m", "dvc", "repro")
CELLS = {
    "table": {"experiment": "table", "data": "table", "method": "mnvi"},
    "images": {"experiment": "images", "data": "images", "method": "mnvi"},
}
# Enough runs for two chunks, and enough epochs that a chunk lasts for seconds. The last point of each grid is its best,
# so that ASHA ends no trial: which trials it ends depends on timing.
TABLE = {
    "kind": "regression",
    "data": "table",
    "network": "mlp",
    "hidden": 10,
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "momentum": 0.9,
    "epochs": 400,
    "batch_size": 16,
    "milestones": [300],
    "gamma": 0.1,
    "clip": 1.0,
    "kappa": {0: 0.01, 2: 1.0},
    "runs": 60,
    "methods": {
        "mnvi": {"hyperparameters": {"prior_variance": 10.0}, "grid": {"prior_variance": [0.1, 10.0]}},
    },
}
IMAGES = {
    "kind": "classification",
    "data": "images",
    "ood": [],
    "network": "lenet",
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "epochs": 12,
    "batch_size": 8,
    "milestones": [8],
    "gamma": 0.1,
    "clip": 0.1,
    "augmentation": "none",
    "normalisation": "cifar10",
    "seeds": 1,
    "methods": {
        "mnvi": {
            "hyperparameters": {"kappa_over_n": 1.0e-6, "prior_variance": 1.0e-3, "learning_rate": 0.01},
            "grid": {"learning_rate": [1.0e-5, 0.01]},
        },
    },
}
PARAMS: dict[str, Any] = {
    "study": {
        "name": "faults",
        "results": "results",
        "preset": "release",
        "searcher": "grid",
        "trials": 4,
        "missing_data": "stop",
        "limits": {
            "regression": {"runs": None, "folds": None, "epochs": None, "search_epochs": 10},
            "classification": {
                "seeds": None,
                "epochs": None,
                "train_examples": None,
                "validation_examples": None,
                "test_examples": None,
                "search_epochs": 4,
                "steps_per_epoch": None,
            },
        },
    },
    "resources": {
        "workers": 2,
        "gpu": False,
        "cpus_per_worker": 1,
        "precision": "float32",
        "compile": False,
        "accumulate": 1,
        "allow_fewer_workers": False,
    },
    "datasets": {
        "table": {"kind": "table", "file": "raw/table.csv", "target": 4, "splits": "kfold", "folds": 2},
        "images": {"kind": "folder", "train": "raw/train", "test": "raw/test", "size": 28, "validation": 16},
    },
    "experiments": {"table": TABLE, "images": IMAGES},
}


def copy_code(folder: Path) -> None:
    """Copies the code that all studies of a campaign share, even if somebody edits the project meanwhile."""
    for name in CODE:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, folder)


def make(folder: Path, code: Path, cells: Sequence[str], environment: Mapping[str, str]) -> None:
    """Makes a DVC project with that code, its stages and these cells."""
    shutil.copytree(code, folder)
    chosen = {"data": list(cells), "cells": {name: CELLS[name] for name in cells}, "search": list(cells)}
    params = {**PARAMS, "study": {**PARAMS["study"], **chosen}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    _write_table(folder / "raw")
    for part, count in (("train", 64), ("test", 32)):
        _write_images(folder / "raw" / part, count)
    subprocess.run(["python", "-m", "dvc", "init", "--quiet", "--no-scm"], cwd=folder, env=environment, check=True)
    config = (ROOT / ".dvc/config").read_text()
    (folder / ".dvc/config").write_text(config.replace("[core]", "[core]\n    no_scm = true"))


def start(folder: Path, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Starts the command, which is also repeated after a fault, in its own session."""
    with log.open("ab") as output:
        return subprocess.Popen(
            COMMAND,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def progress(folder: Path, storage: Path) -> float:
    """When the study last finished an epoch, a trial, a chunk or a stage, in seconds since 1970."""
    marks = [folder / "dvc.lock"]
    for pattern in ("**/checkpoint-*.pt", "**/trial*.json", "**/networks-*.pt"):
        marks += [*(folder / "work").glob(pattern), *storage.glob(pattern)]
    times = [0.0]
    for path in marks:
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:  # not there yet, or replaced meanwhile
            continue
    return max(times)


def _write_table(folder: Path) -> None:
    folder.mkdir()
    numbers = np.random.default_rng(0)
    x = numbers.normal(3.0, 2.0, (60, 4))
    y = x @ [1.0, -2.0, 0.5, 0.0] + numbers.normal(0, 0.5, 60)
    np.savetxt(folder / "table.csv", np.column_stack([x, y]), delimiter=",", fmt="%.6f")


def _write_images(folder: Path, count: int) -> None:
    """Writes images of two classes; those of one are brighter in the upper half."""
    numbers = np.random.default_rng(count)
    for index in range(count):
        pixels = numbers.integers(0, 150, (28, 28, 3), dtype=np.uint8)
        name = ("dark", "bright")[index % 2]
        if name == "bright":
            pixels[:14] += 60
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name / f"{index:03}.png")
