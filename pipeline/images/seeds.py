"""The predictions of each trained network of a cell, kept on disk: a changed metric or figure does not repeat them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline import cluster, files, propagation, state, storage
from pipeline.console import say
from pipeline.data.damage import KINDS, SEVERITIES, DamagedImages
from pipeline.data.imagesets import ImageSet, load_images
from pipeline.errors import StudyError, words_of
from pipeline.images import job as jobs
from pipeline.images import objectives, other_images, workers
from pipeline.images.batches import Transform, in_order
from pipeline.images.job import Data, Job
from pipeline.images.predictions import Predictions, milliseconds, optimised, predict
from pipeline.params import Cell


def of(cell: Cell, number: int, others: list[str]) -> list[Seed]:
    """The seeds of a trained cell.

    Args:
        others: names of the foreign data sets that its networks are tested on besides their own.
    """
    made_for = {**cell.made_for("predict"), "data": digests(cell, others)}
    folder = state.progress(cell.state("evaluate"), cell, "evaluate", made_for)
    assert isinstance(folder, Path)  # on the machine of the stage, which writes down what workers predict
    return [Seed(cell, seed, folder) for seed in range(number)]


def evaluated(seeds: list[Seed], others: dict[str, ImageSet]) -> Iterator[None]:
    """Makes the predictions that are missing; yields for each seed that has them.

    Without a cluster one seed after the other predicts in this process; on a cluster each is a task of its own.
    """
    new = [seed for seed in seeds if seed.kept() is None]
    yield from [None] * (len(seeds) - len(new))
    if not os.environ.get("RAY_ADDRESS"):
        for seed in new:
            seed.evaluate(others)
            yield
    elif new:
        with cluster.connected():
            yield from _side_by_side(new, list(others))


def _side_by_side(seeds: list[Seed], others: list[str]) -> Iterator[None]:
    """Ray starts as many tasks as there is room for."""
    import ray

    cell, root = seeds[0].cell, storage.root()
    cluster.check_shared(seeds[0].path.parent.absolute() if root is None else root)  # not in data/, which DVC compares
    workers.affordable(replace(cell, resources=replace(cell.resources, workers=1)))
    needs = cell.resources.per_worker
    task = ray.remote(num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0.0), max_retries=workers.RESTARTS)(_predict)
    data, model = jobs.shared(cell.data), jobs.shared(cell.model)
    foreign = {name: jobs.shared(cell.ood[name]) for name in others}
    running = {task.remote(cell, seed.seed, data, model, foreign): seed for seed in seeds}
    while running:
        (ended,), _ = ray.wait(list(running))
        seed = running.pop(ended)
        try:
            seed.keep(ray.get(ended))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", error)
            raise StudyError(f"{cell.name}, seed {seed.seed}: its evaluation failed with\n{words_of(cause)}") from error
        yield


def _predict(cell: Cell, seed: int, data: Data, model: Data, others: dict[str, Data]) -> dict[str, Any]:
    torch.set_num_threads(cell.resources.cpus_per_worker)
    found = Seed(cell, seed, Path(), data.folder, model.folder)
    return found.predictions({name: load_images(one.folder, "test") for name, one in others.items()})


def digests(cell: Cell, others: list[str]) -> list[str]:
    return [jobs.digest(cell.data), *(jobs.digest(cell.ood[name]) for name in others)]


class Seed:
    """One trained network. Its predictions are kept, so that an interrupted evaluation can resume.

    Args:
        folder: of the predictions.
        data: where the cell's data are on this machine, if it is not the machine of the stage.
        model: where its networks are.
    """

    def __init__(
        self, cell: Cell, seed: int, folder: Path, data: Path | None = None, model: Path | None = None
    ) -> None:
        self.cell, self.seed = cell, seed
        self.data = data or cell.data
        self.weights = (model or cell.model) / f"seed-{seed}" / "model.pt"
        self.digest = files.sha256(self.weights)
        self.path = folder / f"seed-{seed}-{self.digest[:12]}.pt"
        # The machine of the stage may have no GPU, although training had one.
        self.device = torch.device("cuda" if cell.resources.gpu and torch.cuda.is_available() else "cpu")
        self.made_by = f"python -m pipeline.train {cell.name}"

    def evaluated(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        kept = self.kept()
        if kept is None:
            kept = self.evaluate(others)
        return {
            "test": Predictions(**kept["test"]),
            "others": {name: Predictions(**tensors) for name, tensors in kept["others"].items()},
            "damaged": {
                kind: [Predictions(**tensors) for tensors in severities] for kind, severities in kept["damaged"].items()
            },
            "milliseconds": kept["milliseconds"],
            "seconds": kept["seconds"],
            "parameters": kept["parameters"],
        }

    def kept(self) -> dict[str, Any] | None:
        """Earlier predictions that can be read."""
        if not self.path.exists():
            return None
        try:
            kept: dict[str, Any] = files.read_tensors(self.path, "python -m pipeline.evaluate")
        except StudyError as error:
            say(f"{error}\nEvaluating this seed again")
            return None
        return kept

    def keep(self, predictions: dict[str, Any]) -> None:
        files.write_tensors(self.path, predictions)

    def evaluate(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        """Predicts, and keeps the predictions."""
        made = self.predictions(others)
        self.keep(made)
        return made

    def predictions(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        with propagation.options(self.cell.known_method):
            return self._measured(others)

    def network(self) -> nn.Module:
        """The trained network, for evaluation."""
        job = Job(self.cell, self.seed, Data(self.data, ""), self.path.parent)
        net = jobs.network(job)
        net.load_state_dict(files.read_tensors(self.weights, self.made_by))
        return net.to(self.device).eval()

    def _measured(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        began = time.monotonic()
        net = self.network()
        transform = jobs.transform(self.cell, training=False)
        test = load_images(self.data, "test")
        from_elsewhere = other_images.transform(self.cell, test.take(torch.tensor([0]))[0])
        most = self.cell.study.classification.test_examples
        rows = [torch.arange(min(most or len(images), len(images))) for images in (test, *others.values())]
        example = next(in_order(test, rows[0], transform, self.device)).images
        damaged = rows[0][: self.cell.experiment.damaged or 0]
        predicted = sum(map(len, rows)) + len(damaged) * len(KINDS) * len(SEVERITIES)
        fast = optimised(net, predicted, example)

        def predictions(images: ImageSet, rows: torch.Tensor, transform: Transform) -> dict[str, torch.Tensor]:
            return predict(fast, images, rows, transform, self.device, self.seed).tensors()

        return {
            "test": predictions(test, rows[0], transform),
            "others": {
                name: predictions(images, some, from_elsewhere)
                for (name, images), some in zip(others.items(), rows[1:], strict=True)
            },
            "damaged": {
                kind: [
                    predictions(DamagedImages(self.data, "test", kind, severity), damaged, transform)
                    for severity in SEVERITIES
                ]
                for kind in (KINDS if len(damaged) else ())
            },
            "milliseconds": milliseconds(net, test, transform, self.device),
            "parameters": objectives.num_parameters(net),
            "seconds": time.monotonic() - began,
        }
