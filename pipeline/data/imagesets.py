"""Prepared images as the stages read them: memory-mapped arrays, or photographs in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.data.shards import Shards
from pipeline.data.summaries import read_array, read_summary
from pipeline.errors import StudyError

PARTS = ("train", "validation", "test")


class ImageSet:
    """One part of a prepared image set. Its pickle holds only the folder and the part: workers open the files
    themselves.
    """

    def __init__(self, folder: Path, part: str) -> None:
        self.folder, self.part = folder, part
        self.summary: dict[str, Any] = read_summary(folder, "images", "folder")
        self.classes: list[str] = self.summary["classes"]
        self.ragged: bool = self.summary["kind"] == "folder"
        stored = "test" if part == "test" else "train"
        if stored not in self.summary["rows"]:
            raise StudyError(f"{folder}: the data set has no {part} part; it is for testing only")
        self.channels: int = 3 if self.ragged else self.summary["shape"][0]
        if self.ragged:
            self.shards = Shards(folder, part, self.summary["per_shard"])
            self.labels: Tensor = torch.from_numpy(read_array(folder / f"{part}_labels.npy"))
            return
        labels = read_array(folder / f"{stored}_labels.npy")
        rows = np.arange(len(labels)) if part == "test" else read_array(folder / f"{part}_index.npy")
        self._rows = torch.from_numpy(rows)  # of the stored arrays
        self.labels = torch.from_numpy(labels[rows])
        self._images = read_array(folder / f"{stored}_images.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageSet, (self.folder, self.part)

    def take(self, rows: Tensor) -> Tensor | list[Tensor]:
        """The images of these rows: uint8 [b, c, h, w], or a list of uint8 [c, h, w] where sizes differ."""
        if self.ragged:
            return [self.shards.image(row) for row in rows.tolist()]
        return torch.from_numpy(self._images[self._rows[rows].numpy()])

    def order(self, examples: int, generator: torch.Generator) -> Tensor:
        """The first ``examples`` rows in random order, for an epoch."""
        if self.ragged:
            return self.shards.order(examples, generator)
        return torch.randperm(examples, generator=generator)


def load_images(folder: str | Path, part: str) -> ImageSet:
    """A part of a prepared image set: train, validation or test."""
    if part not in PARTS:
        raise ValueError(f"part {part!r}; expected one of {', '.join(PARTS)}")
    return ImageSet(Path(folder), part)
