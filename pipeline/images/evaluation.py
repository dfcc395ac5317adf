"""Scores a trained cell on test images and on images from elsewhere, seed by seed."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from pipeline import data as datasets
from pipeline import files, tracking
from pipeline.console import progress, say
from pipeline.data import ImageSet, load_images
from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.images import networks
from pipeline.images.batches import Transform
from pipeline.images.curves import curves
from pipeline.images.job import Job
from pipeline.images.pictures import extremes
from pipeline.images.predictions import Predictions, milliseconds, predict
from pipeline.params import Cell
from pipeline.registry.metrics import measured


def run(cell: Cell) -> None:
    made_by = f"python -m pipeline.train {cell.name}"
    training = files.read_json(cell.model / "training.json", made_by)
    cell, state = cell.tuned(), cell.state("evaluate")
    others = _others(cell)
    seeds = [Seed(cell, seed, state, list(others)) for seed in range(training["seeds"])]
    if cell.resources.gpu and not torch.cuda.is_available():
        say(f"evaluate {cell.name}: no GPU here, so it goes on without (resources.gpu)")
    with tracking.run(cell, "evaluate", state=state, depends_on=[seed.depends_on for seed in seeds]) as tracked:
        tracked.params({**cell.parameters("evaluate"), "seeds": len(seeds)})
        tracked.dataset(jobs.summary(cell.data), context="test")
        for name in others:
            tracked.dataset(jobs.summary(cell.ood[name]), context="ood")
        found = []
        with progress(f"evaluate {cell.name}", len(seeds), "seeds") as bar:
            for one in seeds:
                found.append(one.evaluated(others))
                bar.advance()
        scores = _scores(cell, training, found)
        test = load_images(cell.data, "test")
        files.write_json(cell.evaluate / "scores.json", scores)
        files.write_json(cell.evaluate / "metrics.json", _flat(scores))
        foreign = [predictions for seed in found for predictions in seed["others"].values()]
        files.write_json(cell.plots / "curves.json", curves([seed["test"] for seed in found], foreign))
        extremes(cell.plots / "extremes.png", test, found[0]["test"])
        tracked.metrics(_flat(scores), step=0)
        for path in (cell.evaluate / "scores.json", cell.plots / "curves.json", cell.plots / "extremes.png"):
            tracked.artifact(path)


class Seed:
    """One trained network. What it predicted is kept, so that an interrupted evaluation goes on."""

    def __init__(self, cell: Cell, seed: int, state: Path, others: list[str]) -> None:
        self.cell, self.seed = cell, seed
        self.weights = cell.model / f"seed-{seed}" / "model.pt"
        self.path = state / f"seed-{seed}.pt"
        # Training may have been on a cluster with GPUs; evaluation is where the stage runs.
        self.device = torch.device("cuda" if cell.resources.gpu and torch.cuda.is_available() else "cpu")
        self.made_by = f"python -m pipeline.train {cell.name}"
        digests = [jobs.digest(cell.data), *(jobs.digest(cell.ood[name]) for name in others)]
        self.depends_on = [cell.fingerprint("evaluate"), files.sha256(self.weights), *digests]

    def evaluated(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        kept = self._kept()
        if kept is None:
            kept = self._evaluate(others)
            files.write_tensors(self.path, {"depends_on": self.depends_on, **kept})
        return {
            "test": Predictions(**kept["test"]),
            "others": {name: Predictions(**tensors) for name, tensors in kept["others"].items()},
            "milliseconds": kept["milliseconds"],
            "seconds": kept["seconds"],
            "parameters": kept["parameters"],
        }

    def _kept(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        try:
            kept: dict[str, Any] = files.read_tensors(self.path, "python -m pipeline.evaluate")
        except StudyError as error:
            say(f"{error}\nThis seed is evaluated anew")
            return None
        return kept if kept["depends_on"] == self.depends_on else None

    def _evaluate(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        began = time.monotonic()
        job = Job(self.cell, self.seed, jobs.Data(self.cell.data, ""), self.path.parent, "")
        net = jobs.objective(job).net
        assert isinstance(net, torch.nn.Module)
        net.load_state_dict(files.read_tensors(self.weights, self.made_by))
        net = net.to(self.device).eval()
        transform = jobs.transform(self.cell, training=False)
        test = load_images(self.cell.data, "test")
        from_elsewhere = jobs.transform_foreign(self.cell, test.take(torch.tensor([0]))[0])

        def predictions(images: ImageSet, transform: Transform) -> dict[str, torch.Tensor]:
            most = self.cell.study.classification.test_examples
            rows = torch.arange(min(most or len(images), len(images)))
            return predict(net, images, rows, transform, self.device, self.seed).tensors()

        return {
            "test": predictions(test, transform),
            "others": {name: predictions(images, from_elsewhere) for name, images in others.items()},
            "milliseconds": milliseconds(net, test, transform, self.device),
            "parameters": networks.num_parameters(net),
            "seconds": time.monotonic() - began,
        }


def metrics(test: Predictions, others: dict[str, Predictions]) -> dict[str, float]:
    """Of one seed. Fractions, not percent; `auroc_<set>` is about the foreign images of that set."""
    found = {metric.name: metric.measure(test.probs, test.labels) for metric in measured("classification")}
    for name, foreign in others.items():
        for metric in measured("classification", foreign=True):
            found[f"{metric.name}_{name}"] = metric.measure(test, foreign)
    return {name: value for name, value in found.items() if value is not None}


def _scores(cell: Cell, training: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    per_seed = [metrics(seed["test"], seed["others"]) for seed in found]
    values = {name: [seed[name] for seed in per_seed] for name in per_seed[0] if all(name in s for s in per_seed)}
    values["inference_ms"] = [seed["milliseconds"] for seed in found]
    values["parameters"] = [seed["parameters"] for seed in found]
    return {
        "kind": cell.kind,
        "data": cell.experiment.data,
        "experiment": cell.experiment.name,
        "method": cell.method,
        "network": cell.experiment.network,
        "complete": training["complete"] and cell.study.classification.test_examples is None,
        "runs": len(found),
        "folds": None,
        "seconds": training["seconds"] + sum(seed["seconds"] for seed in found),
        "num_parameters": training["num_parameters"],
        "metrics": {name: _summary(per_run) for name, per_run in values.items()},
        "missing": None,
    }


def _summary(values: list[float]) -> dict[str, Any]:
    """The standard deviation is that of the runs; one run has none."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "values": values}


def _flat(scores: dict[str, Any]) -> dict[str, float]:
    flat = {}
    for name, summary in scores["metrics"].items():
        flat[name] = summary["mean"]
        if summary["std"] is not None:
            flat[f"{name}_std"] = summary["std"]
    return flat


def _others(cell: Cell) -> dict[str, ImageSet]:
    """The sets of images from elsewhere that are there."""
    found = {}
    for name, folder in cell.ood.items():
        why = datasets.missing(folder)
        if why is not None:
            say(f"{cell.name}: no AUROC against {name}, its data are missing: {why}")
            continue
        found[name] = load_images(folder, "test")
    return found
