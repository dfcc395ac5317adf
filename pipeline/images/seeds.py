"""The predictions of each trained network of a cell, kept on disk: a changed metric or figure does not repeat them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline import files, propagation, state
from pipeline.console import say
from pipeline.data.damage import KINDS, SEVERITIES, DamagedImages
from pipeline.data.imagesets import ImageSet, load_images
from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.images import objectives, other_images
from pipeline.images.batches import Transform, in_order
from pipeline.images.job import Job
from pipeline.images.predictions import Predictions, milliseconds, optimised, predict
from pipeline.params import Cell


def of(cell: Cell, number: int, others: list[str]) -> list[Seed]:
    """The seeds of a trained cell.

    Args:
        others: names of the foreign data sets that its networks are tested on besides their own.
    """
    made_for = {**cell.made_for("predict"), "data": digests(cell, others)}
    folder = state.progress(cell.state("evaluate"), cell, "evaluate", made_for)
    assert isinstance(folder, Path)  # evaluation runs on the machine of the stage
    return [Seed(cell, seed, folder) for seed in range(number)]


def digests(cell: Cell, others: list[str]) -> list[str]:
    return [jobs.digest(cell.data), *(jobs.digest(cell.ood[name]) for name in others)]


class Seed:
    """One trained network. Its predictions are kept, so that an interrupted evaluation can resume."""

    def __init__(self, cell: Cell, seed: int, folder: Path) -> None:
        self.cell, self.seed = cell, seed
        self.weights = cell.model / f"seed-{seed}" / "model.pt"
        self.digest = files.sha256(self.weights)
        self.path = folder / f"seed-{seed}-{self.digest[:12]}.pt"
        # Training may have used a cluster with GPUs; evaluation runs on the machine of the stage.
        self.device = torch.device("cuda" if cell.resources.gpu and torch.cuda.is_available() else "cpu")
        self.made_by = f"python -m pipeline.train {cell.name}"

    def evaluated(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        kept = self._kept()
        if kept is None:
            kept = self._evaluate(others)
            files.write_tensors(self.path, kept)
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

    def _kept(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        try:
            kept: dict[str, Any] = files.read_tensors(self.path, "python -m pipeline.evaluate")
        except StudyError as error:
            say(f"{error}\nEvaluating this seed again")
            return None
        return kept

    def _evaluate(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        with propagation.options(self.cell.known_method):
            return self._measured(others)

    def network(self) -> nn.Module:
        """The trained network, for evaluation."""
        job = Job(self.cell, self.seed, jobs.Data(self.cell.data, ""), self.path.parent)
        net = jobs.network(job)
        net.load_state_dict(files.read_tensors(self.weights, self.made_by))
        return net.to(self.device).eval()

    def _measured(self, others: dict[str, ImageSet]) -> dict[str, Any]:
        began = time.monotonic()
        net = self.network()
        transform = jobs.transform(self.cell, training=False)
        test = load_images(self.cell.data, "test")
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
                    predictions(DamagedImages(self.cell.data, "test", kind, severity), damaged, transform)
                    for severity in SEVERITIES
                ]
                for kind in (KINDS if len(damaged) else ())
            },
            "milliseconds": milliseconds(net, test, transform, self.device),
            "parameters": objectives.num_parameters(net),
            "seconds": time.monotonic() - began,
        }
