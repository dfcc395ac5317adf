"""Writes files that DVC compares to tell whether a stage is out of date, where its templates cannot express it.

`settings/<cell>/<stage>.json` holds exactly the settings that the stage's result depends on, and digests of its code.
`settings/prepare/<dataset>.json` holds the same for a data set. `ood/<cell>.json` holds digests of the
out-of-distribution data that the cell is tested on. `settings/shown.json` is for people: `dvc exp show` prints it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeline import files, registry
from pipeline.params import code
from pipeline.params.cells import Cell
from pipeline.params.reading import Params
from pipeline.registry.images import IMAGES

STAGES = ("tune", "train", "evaluate")


def write_settings(params: Params) -> None:
    study = params.study
    with files.replacing(study.results / "settings") as folder:
        for cell in params.cells():
            for stage in STAGES:
                settings = {**cell.settings(stage), "code": cell.code(stage)}
                files.write_json(folder / cell.name / f"{stage}.json", settings)
        shown = {cell.name: _line(cell) for cell in params.cells()}
        files.write_json(folder / "shown.json", {"study": f"{study.name}, {study.preset}", **shown})
        for name in study.data:
            files.write_json(folder / "prepare" / f"{name}.json", of_prepare(params, name))
        files.write_json(folder / "report.json", of_report(params))


def of_prepare(params: Params, name: str) -> dict[str, Any]:
    """The settings and code that a prepared data set depends on."""
    entry = registry.essence(IMAGES[name]) if name in IMAGES else None
    dataset = {**asdict(params.datasets[name]), "missing_data": params.study.missing_data, "entry": entry}
    return {**dataset, "code": code.of("data", "prepare", filter(None, [IMAGES.origin(name)]))}


def of_report(params: Params) -> dict[str, Any]:
    """The settings that the report depends on."""
    study = params.study
    return {"name": study.name, "preset": study.preset, "cells": study.cells}


def write_ood(params: Params) -> None:
    with files.replacing(params.study.results / "ood") as folder:
        for cell in params.cells():
            files.write_json(folder / f"{cell.name}.json", _digests(cell))


def _line(cell: Cell) -> str:
    """The settings that people compare, in one line."""
    recipe = cell.experiment
    repeats = f"{recipe.runs} runs" if cell.kind == "regression" else f"{recipe.seeds} seeds"
    schedule = f"{recipe.epochs} epochs of batches of {recipe.batch_size}"
    method = [f"{key} {value:g}" for key, value in cell.hyperparameters.items()]
    searched = ["searched"] if cell.searched else []
    return ", ".join([f"{repeats}, {schedule}, {recipe.optimizer} {recipe.learning_rate:g}", *method, *searched])


def _digests(cell: Cell) -> dict[str, Any]:
    digests = {}
    for name, folder in cell.ood.items():
        summary = files.read_json(folder / "summary.json", f"python -m pipeline.prepare {name}")
        digests[name] = summary.get("digest", "missing")
    return digests
