"""A study's results without the study: files as the other stages write them, with figures near the paper's."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from matplotlib.image import imsave

from pipeline import files, params
from pipeline.data.damage import KINDS
from pipeline.params import Cell, Params
from pipeline.report import paper

ROOT = Path(__file__).parents[2]
BINS, STEPS = 20, 50


def write_params(cells: Sequence[str], search: Sequence[str] = (), name: str = "small") -> Params:
    """A params.yaml in the working folder: the project's experiments with a study of these cells."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    coordinates = {cell: cell.rpartition("-")[::2] for cell in cells}
    raw["study"] = {
        **raw["study"],
        "name": name,
        "data": sorted(_data(raw, (experiment for experiment, _ in coordinates.values()))),
        "cells": {
            cell: {"experiment": experiment, "data": raw["experiments"][experiment]["data"], "method": method}
            for cell, (experiment, method) in coordinates.items()
        },
        "search": list(search),
        "limits": {kind: dict.fromkeys(limits) for kind, limits in raw["study"]["limits"].items()},
    }
    files.write_yaml("params.yaml", raw)
    return params.load("params.yaml")


def _data(raw: dict[str, Any], experiments: Any) -> set[str]:
    found = [raw["experiments"][name] for name in experiments]
    return {name for one in found for name in (one["data"], *one.get("ood", ()))}


def write_results(
    settings: Params, missing: Collection[str] = (), unfinished: Collection[str] = (), runs: int | None = None
) -> None:
    for name in settings.study.data:
        summary = {"name": name, "kind": "table", "digest": f"{hash_of(name):064x}", "source": f"mirror folder, {name}"}
        files.write_json(Path("data") / name / "summary.json", summary)
    for cell in settings.cells():
        write_cell(cell, cell.name in missing, cell.name not in unfinished, runs)


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[:8].ljust(8, b"."), "big") ** 4 % 2**256


def write_cell(cell: Cell, missing: bool = False, complete: bool = True, runs: int | None = None) -> None:
    chance = random.Random(cell.name)
    regression = cell.kind == "regression"
    if missing:
        why = f"{cell.dataset.name}: no source has it; put it into the mirror folder"
        files.write_json(cell.evaluate / "scores.json", {**_names(cell), "metrics": {}, "missing": why})
        files.write_json(cell.data / "summary.json", {"missing": why})
        return
    runs = runs or (20 if regression else 4)
    metrics = _regression(cell, chance) if regression else _classification(cell, chance)
    files.write_json(
        cell.evaluate / "scores.json",
        {
            **_names(cell),
            "complete": complete,
            "runs": runs,
            "folds": 10 if regression else None,
            "seconds": chance.uniform(20, 9000),
            "num_parameters": int(metrics.get("parameters", {"mean": 800})["mean"]),
            "metrics": metrics,
            "missing": None,
        },
    )
    _write_search(cell, chance)
    _write_training(cell, chance, complete, runs)
    if not regression:
        _write_curves(cell, metrics["misclassification"]["mean"])


def _names(cell: Cell) -> dict[str, str]:
    experiment = cell.experiment
    return {
        "kind": cell.kind,
        "data": experiment.data,
        "experiment": experiment.name,
        "network": experiment.network,
        "method": cell.method,
    }


def score(mean: float, std: float | None) -> dict[str, Any]:
    return {"mean": mean, "std": std, "values": [mean]}


def _near(printed: paper.Printed, chance: random.Random) -> dict[str, Any]:
    std = printed.std or 0.004 * abs(printed.mean)
    return score(printed.mean + chance.gauss(0, 1.6) * std, std * chance.uniform(0.5, 1.5))


def _regression(cell: Cell, chance: random.Random) -> dict[str, Any]:
    printed = paper.TABLE_1.get((cell.experiment.data, "mlp", cell.method))
    rates = {f"coverage_{p}": score(p / 100 + chance.uniform(-0.04, 0.04), 0.008) for p in (50, 80, 95)}
    likelihood = _near(printed, chance) if printed else score(-2.5, 0.03)
    return {"log_likelihood": likelihood, "rmse": score(3.1 + chance.random(), 0.05), **rates}


def _classification(cell: Cell, chance: random.Random) -> dict[str, Any]:
    key = (cell.experiment.data, cell.experiment.network, cell.method)
    found = {name: _near(entry, chance) for name, entry in paper.TABLE_2.get(key, {}).items()}
    found.setdefault("misclassification", score(0.2, 0.01))
    for name, factor in (("mr10", 0.5), ("mr25", 0.2), ("mr50", 0.05)):
        found.setdefault(name, score(found["misclassification"]["mean"] * factor, 0.0004))
    if key in paper.TABLE_2:
        found["parameters"] = score(float(paper.TABLE_2[key]["parameters"].mean), 0.0)
    return found | {f"auroc_{name}": score(chance.uniform(0.9, 0.99), 0.004) for name in cell.ood}


def _write_search(cell: Cell, chance: random.Random) -> None:
    best = {"source": "params", "hyperparameters": cell.hyperparameters, "objective": None, "trials": 0}
    trials: list[dict[str, Any]] = []
    if cell.searched:
        trials = [
            {
                "hyperparameters": point,
                "objective": 2.4 + 0.1 * chance.random() + 0.02 * position,
                "epochs": 20,
                "status": "finished",
                "seconds": 12.0,
            }
            for position, point in enumerate(cell.grid_points())
        ]
        trials[-1]["objective"] = None
        chosen = min((one for one in trials if one["objective"] is not None), key=lambda one: one["objective"])
        hyperparameters = cell.with_hyperparameters(chosen["hyperparameters"]).hyperparameters
        best = {"source": "search", "hyperparameters": hyperparameters, "objective": chosen["objective"]}
        best["trials"] = len(trials)
    files.write_yaml(cell.tune / "best.yaml", best)
    files.write_json(cell.tune / "trials.json", trials)


def _write_training(cell: Cell, chance: random.Random, complete: bool, runs: int) -> None:
    epochs = cell.experiment.epochs

    def curve(extra: bool) -> list[dict[str, Any]]:
        return [
            {"epoch": epoch, "loss": 0.3 + 2 * math.exp(-5 * epoch / epochs) + 0.02 * chance.random()}
            | ({"validation_nll": 0.4 + math.exp(-4 * epoch / epochs) + 0.03 * chance.random()} if extra else {})
            | ({"validation_error": 0.02 + 0.1 * math.exp(-3 * epoch / epochs)} if extra else {})
            for epoch in range(1, epochs + 1)
        ]

    training: dict[str, Any] = {"complete": complete, "seconds": chance.uniform(5, 20000)}
    if cell.kind == "regression":
        training["history"] = curve(extra=False)
    else:
        training["seeds"] = runs
        for seed in range(runs):
            files.write_json(cell.model / f"seed-{seed}" / "history.json", curve(extra=True))
    files.write_json(cell.model / "training.json", training)


def _write_curves(cell: Cell, error: float) -> None:
    confidence: list[float | None] = [(k + 0.5) / BINS for k in range(BINS)]
    accuracy = [None if k < 3 else min(1.0, 0.9 * ((k + 0.5) / BINS) + 0.05) for k in range(BINS)]
    confidence[:3] = [None] * 3
    rates = [k / STEPS for k in range(STEPS)]
    edges = [0.1 * k for k in range(24)]
    shapes = {"correct": 3.0, "wrong": 0.9, "ood": 0.4}
    histogram = {
        "edges": edges,
        **{group: [round(9000 * math.exp(-rate * k / 3)) for k in range(23)] for group, rate in shapes.items()},
    }
    files.write_json(
        cell.plots / "curves.json",
        {
            "reliability": {"confidence": confidence, "accuracy": accuracy, "count": [500] * BINS},
            "rejection": {"rate": rates, "misclassification": [error * math.exp(-6 * rate) for rate in rates]},
            "uncertainty": {kind: histogram for kind in ("total", "aleatoric", "epistemic")},
            "severity": {
                metric: {
                    kind: [error * (1 + factor * step) for step in range(6)] for factor, kind in enumerate(KINDS, 1)
                }
                for metric in ("misclassification", "nll", "ece", "aumrc")
            },
        },
    )
    imsave(cell.plots / "extremes.png", torch.rand(60, 300, 3).numpy())
