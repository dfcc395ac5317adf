"""Small photographs for tests, as `prepare` stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.data import shard_format
from pipeline.params import Dataset
from pipeline.prepare import prepare

CLASSES = ("cat", "dog", "owl")


def write_photos(folder: Path, each: int, height: int, widths: tuple[int, ...], seed: int = 0) -> None:
    """A folder of JPEGs, of which those of a class are alike."""
    numbers = np.random.default_rng(seed)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            rough = numbers.integers(0, 120, (8, 8, 3)) + 60 * label
            picture = Image.fromarray(rough.astype(np.uint8)).resize((widths[number % len(widths)], height))
            picture.save(folder / name / f"{number:03d}.jpg", quality=95)


def prepared_photos(
    *,
    each: int = 20,
    test_each: int = 3,
    validation: int = 6,
    size: int = 64,
    widths: tuple[int, ...] = (72, 80, 88),
    per_shard: int = 8,
) -> Path:
    """Writes and prepares the data set `photos` in the working folder; returns data/photos."""
    write_photos(Path("raw/train"), each, size, widths)
    write_photos(Path("raw/test"), test_each, size, widths, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_format, "PER_SHARD", per_shard)
        prepare(Dataset(name="photos", **entry(size, validation)), "stop")
    return Path("data/photos").absolute()


def entry(size: int, validation: int = 6) -> dict[str, Any]:
    """The data set's entry of params.yaml."""
    return {"kind": "folder", "train": "raw/train", "test": "raw/test", "size": size, "validation": validation}
