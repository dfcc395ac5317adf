"""How fast each worker of a training is: images a second and, on a GPU, its memory and utilisation."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable

import torch

from pipeline.images.batches import Part
from pipeline.images.group import Group

NAMES = ("images_per_second", "gpu_memory_gb", "gpu_utilisation")


class Pace:
    """One worker's measurements of an epoch; after a restart, of the rest of the epoch."""

    def __init__(self, group: Group) -> None:
        self.group, self.on_gpu = group, group.device.type == "cuda"
        self._knows_utilisation = self.on_gpu and importlib.util.find_spec("pynvml") is not None
        self.begin()

    def begin(self) -> None:
        self.began, self.images, self.utilisation = time.monotonic(), 0, list[float]()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.group.device)

    def count(self, parts: Iterable[Part]) -> None:
        """Counts the images of a step."""
        self.images += sum(len(part.labels) for part in parts)

    def sample(self) -> None:
        """Looks at the GPU's utilisation, in percent; called whenever the losses are read."""
        if self._knows_utilisation:
            self.utilisation.append(float(torch.cuda.utilization(self.group.device)))

    def of_all(self) -> list[dict[str, float]]:
        """The figures of every worker, in the order of their ranks. All workers call it together."""
        table = torch.zeros(self.group.size, len(NAMES), dtype=torch.float64, device=self.group.device)
        table[self.group.rank] = torch.tensor(self._own(), dtype=torch.float64)
        measured = NAMES[: 3 if self._knows_utilisation else 2 if self.on_gpu else 1]
        return [dict(zip(measured, row, strict=False)) for row in self.group.sum(table).tolist()]

    def _own(self) -> list[float]:
        speed = self.images / max(time.monotonic() - self.began, 1e-9)
        memory = torch.cuda.max_memory_allocated(self.group.device) / 1e9 if self.on_gpu else 0.0
        return [speed, memory, sum(self.utilisation) / max(1, len(self.utilisation))]
