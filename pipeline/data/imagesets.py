"""Prepared images as the stages read them: memory-mapped, a batch at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.data.summaries import read_array, read_pixels, read_summary
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
        labels = read_array(folder / f"{stored}_labels.npy")
        rows = np.arange(len(labels)) if part == "test" else read_array(folder / f"{part}_index.npy")
        self._rows = torch.from_numpy(rows)  # of the stored arrays
        self.labels: Tensor = torch.from_numpy(labels[rows])
        if self.ragged:
            self._layout = read_array(folder / f"{stored}_layout.npy")
            offset, height, width = self._layout.T
            end = int((offset + 3 * height * width).max(initial=0))
            self._pixels = read_pixels(folder / f"{stored}_pixels.bin", end)
        else:
            self._images = read_array(folder / f"{stored}_images.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageSet, (self.folder, self.part)

    def take(self, rows: Tensor) -> Tensor | list[Tensor]:
        """The images of these rows: uint8 [b, c, h, w], or a list of uint8 [c, h, w] where sizes differ."""
        stored = self._rows[rows].numpy()
        if self.ragged:
            return [self._ragged(row) for row in stored]
        return torch.from_numpy(self._images[stored])

    def _ragged(self, row: int) -> Tensor:
        offset, height, width = (int(number) for number in self._layout[row])
        pixels = np.array(self._pixels[offset : offset + 3 * height * width])
        return torch.from_numpy(pixels.reshape(3, height, width))


def load_images(folder: str | Path, part: str) -> ImageSet:
    """A part of a prepared image set: train, validation or test."""
    if part not in PARTS:
        raise ValueError(f"part {part!r}; expected one of {', '.join(PARTS)}")
    return ImageSet(Path(folder), part)
