"""A regression study that takes seconds: a made-up table, a params.yaml for it, and its cells."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from pipeline import params
from pipeline.params import Cell
from pipeline.params.settings import ClassificationLimits, RegressionLimits
from tools.faults.study import PARAMS

METHODS: dict[str, dict[str, Any]] = {
    "mnvi": {"prior_variance": 10.0},
    "mfvi": {"prior_variance": 10.0},
    "smfvi": {"prior_variance": 10.0},
    "mc_mfvi": {"prior_variance": 10.0, "num_samples": 12},
    "mc_dropout": {"dropout": 0.1, "num_samples": 12},
    "ensemble": {"num_members": 3},
    "dvi": {},
    "ddvi": {},
    "deterministic": {},
}
RECIPE: dict[str, Any] = {
    "kind": "regression",
    "data": "tiny",
    "network": "mlp",
    "hidden": 10,
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "momentum": 0.9,
    "epochs": 3,
    "batch_size": 16,
    "milestones": [2],
    "gamma": 0.1,
    "clip": 1.0,
    "kappa": {0: 0.01, 2: 1.0},
    "runs": 2,
}

NO_LIMITS = dict.fromkeys(field.name for field in fields(RegressionLimits))
NO_IMAGE_LIMITS = dict.fromkeys(field.name for field in fields(ClassificationLimits))
RESOURCES = {**PARAMS["resources"], "workers": 1}


def make_table(folder: Path, rows: int = 60, folds: int = 2) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, (rows, 4))
    save_table(folder, x, x @ [1.0, -2.0, 0.5, 0.0] + rng.normal(0, 0.5, rows), folds)


def save_table(folder: Path, x: Any, y: Any, folds: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    tests = [list(range(fold, len(y), folds)) for fold in range(folds)]
    (folder / "splits.json").write_text(json.dumps({"test": tests}))
    summary = {"name": "tiny", "kind": "table", "digest": "0" * 64, "source": "made up", "rows": len(y)}
    (folder / "summary.json").write_text(json.dumps(summary))


def write_params(
    path: Path,
    recipe: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    grid: dict[str, list[Any]] | None = None,
    **study: Any,
) -> None:
    """params.yaml with a cell ``tiny-<method>`` for every method; a grid is that of each and is searched."""
    methods = {name: {"hyperparameters": given} for name, given in METHODS.items()}
    if grid:
        methods = {name: {**entry, "grid": grid} for name, entry in methods.items()}
    cells = {f"tiny-{name}": {"experiment": "tiny", "data": "tiny", "method": name} for name in METHODS}
    content = {
        "study": {
            "name": "tiny",
            "results": "results",
            "preset": "release",
            "data": ["tiny"],
            "cells": cells,
            "search": list(cells) if grid else [],
            "searcher": "grid",
            "trials": 4,
            "missing_data": "stop",
            "limits": {"regression": {**NO_LIMITS, **(limits or {})}, "classification": NO_IMAGE_LIMITS},
            **study,
        },
        "resources": RESOURCES,
        "datasets": {"tiny": {"kind": "table", "folder": "tiny", "splits": "kfold", "folds": 2}},
        "experiments": {"tiny": {**RECIPE, **(recipe or {}), "methods": methods}},
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """Makes a study and works in its folder; all of a session's share one MLflow store, as making one takes seconds."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder.parent}/mlflow.db")
    make_study(folder, **settings)


def make_study(folder: Path, **settings: Any) -> None:
    make_table(folder / "data" / "tiny")
    write_params(folder / "params.yaml", **settings)


def cell(method: str) -> Cell:
    """Of the study in the current folder."""
    return params.load().cell(f"tiny-{method}")


def add_photos(classes: int, images: int) -> None:
    """Gives the study of this folder a data set of photographs, all noise."""
    numbers = np.random.default_rng(0)
    for label in range(classes):
        folder = Path("photos") / f"class-{label}"
        folder.mkdir(parents=True)
        for image in range(images):
            Image.fromarray(numbers.integers(256, size=(120, 100, 3), dtype=np.uint8)).save(folder / f"{image}.png")
    settings = yaml.safe_load(Path("params.yaml").read_text())
    settings["datasets"]["photos"] = {"kind": "folder", "test": "photos", "size": 64}
    Path("params.yaml").write_text(yaml.safe_dump(settings))
