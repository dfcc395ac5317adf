"""Scores a trained cell on test images and on images of other data sets, seed by seed."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

import mnvi
from pipeline import files, missing, run_statistics, tracking
from pipeline.console import progress, say
from pipeline.data.imagesets import ImageSet, load_images
from pipeline.images import job as jobs
from pipeline.images import seeds as kept
from pipeline.images.curves import curves
from pipeline.images.pictures import extremes
from pipeline.images.predictions import Predictions
from pipeline.params import Cell
from pipeline.registry.metrics import measured
from pipeline.tracking import registered

HEADLINE = ("misclassification", "nll", "ece")  # DVC shows these; scores.json has all


def run(cell: Cell) -> None:
    made_by = f"python -m pipeline.train {cell.name}"
    training = files.read_json(cell.model / "training.json", made_by)
    cell = cell.tuned()
    others = foreign_sets(cell)
    seeds = kept.of(cell, training["seeds"], list(others))
    depends_on = [cell.fingerprint("evaluate"), *(seed.digest for seed in seeds), *kept.digests(cell, list(others))]
    if cell.resources.gpu and not torch.cuda.is_available() and not os.environ.get("RAY_ADDRESS"):
        say(f"evaluate {cell.name}: there is no GPU here; evaluating on the CPU (resources.gpu)")
    with tracking.run(cell, "evaluate", state=cell.state("evaluate"), depends_on=depends_on) as tracked:
        tracked.params({**cell.parameters("evaluate"), "seeds": len(seeds)})
        tracked.dataset(jobs.summary(cell.data), context="test")
        for name in others:
            tracked.dataset(jobs.summary(cell.ood[name]), context="ood")
        with progress(f"evaluate {cell.name}", len(seeds), "seeds") as bar:
            for _ in kept.evaluated(seeds, others):
                bar.advance()
        found = [one.evaluated(others) for one in seeds]
        scores = summarised(cell, training, found)
        test = load_images(cell.data, "test")
        files.write_json(cell.evaluate / "scores.json", scores)
        flat = run_statistics.flat(scores["metrics"])
        files.write_json(cell.evaluate / "metrics.json", {name: flat[name] for name in HEADLINE})
        foreign = [predictions for seed in found for predictions in seed["others"].values()]
        files.write_json(
            cell.plots / "curves.json",
            curves([seed["test"] for seed in found], foreign, [seed["damaged"] for seed in found]),
        )
        extremes(cell.plots / "extremes.png", test, found[0]["test"])
        tracked.metrics(flat, step=0)
        tracked.scores_of(cell.state("train"), registered.name_of(cell), {name: flat[name] for name in HEADLINE})
        for path in (cell.evaluate / "scores.json", cell.plots / "curves.json", cell.plots / "extremes.png"):
            tracked.artifact(path)


def auroc(test: Predictions, foreign: Predictions) -> Tensor:
    """How well predictive entropy tells foreign images from test images."""
    return mnvi.metrics.auroc(test.total, foreign.total)


def auroc_epistemic(test: Predictions, foreign: Predictions) -> Tensor | None:
    """How well epistemic uncertainty tells them apart; None for a network without epistemic uncertainty."""
    return mnvi.metrics.auroc(test.epistemic, foreign.epistemic) if bool(test.epistemic.any()) else None


def metrics(test: Predictions, others: dict[str, Predictions]) -> dict[str, float]:
    """The metrics of one seed, as fractions, not percent; `auroc_<set>` uses the foreign images of that set."""
    found = {metric.name: metric.measure(test.probs, test.labels) for metric in measured("classification")}
    for name, foreign in others.items():
        for metric in measured("classification", foreign=True):
            found[f"{metric.name}_{name}"] = metric.measure(test, foreign)
    return {name: value for name, value in found.items() if value is not None}


def summarised(cell: Cell, training: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    per_seed = [metrics(seed["test"], seed["others"]) for seed in found]
    values = {name: [seed[name] for seed in per_seed] for name in per_seed[0] if all(name in s for s in per_seed)}
    values["inference_ms"] = [seed["milliseconds"] for seed in found]
    values["parameters"] = [seed["parameters"] for seed in found]
    return {
        **cell.identity,
        "complete": training["complete"] and cell.study.classification.test_examples is None,
        "runs": len(found),
        "folds": None,
        "seconds": training["seconds"] + sum(seed["seconds"] for seed in found),
        "num_parameters": training["num_parameters"],
        "metrics": {name: run_statistics.over_runs(per_run) for name, per_run in values.items()},
        "missing": None,
    }


def foreign_sets(cell: Cell) -> dict[str, ImageSet]:
    """The foreign image sets whose data are available."""
    found = {}
    for name, folder in cell.ood.items():
        why = missing.why(folder)
        if why is not None:
            say(f"{cell.name}: no AUROC against {name}, whose data are missing: {why}")
            continue
        found[name] = load_images(folder, "test")
    return found
