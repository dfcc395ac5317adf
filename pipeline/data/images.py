"""Image sets of one size: from their official files to arrays in a folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data import image_sources, splits
from pipeline.data.image_sources import Contents
from pipeline.data.known_images import IMAGES
from pipeline.data.sources import CACHE
from pipeline.params import Dataset

Part = tuple[np.ndarray, np.ndarray]
"""Images, uint8 [n, channels, height, width], and labels, int64 [n]."""


@dataclass(frozen=True)
class FoundImages:
    """Arrays by the names of their files, and the summary."""

    arrays: dict[str, np.ndarray]
    summary: dict[str, Any]

    def write(self, folder: Path) -> None:
        for name, array in self.arrays.items():
            np.save(folder / f"{name}.npy", array)


def find_images(dataset: Dataset, cache: Path = CACHE) -> FoundImages:
    """The image set that an entry of params.yaml names, checked and split."""
    contents, source = image_sources.find(dataset.name, cache)
    known = IMAGES[dataset.name]
    parts = {"idx": _from_idx, "cifar10": _from_cifar10, "cifar100": _from_cifar100}[known.form](contents)
    arrays: dict[str, np.ndarray] = {}
    for part, (images, labels) in parts.items():
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    if "train" in parts:
        rows = len(parts["train"][1])
        train, validation = splits.validation(rows, dataset.validation or 0, dataset.name)
        arrays |= {"train_index": train, "validation_index": validation}
    summary = {
        "digest": _digest([contents[file.name] for file in known.files]),
        "source": source,
        "classes": list(known.classes),
        "shape": list(parts["test"][0].shape[1:]),
        "rows": {part: len(labels) for part, (_, labels) in parts.items()},
        "validation": len(arrays.get("validation_index", ())),
    }
    return FoundImages(arrays, summary)


def _digest(contents: list[bytes]) -> str:
    """SHA-256 of the official files, one after the other in the order in which they are listed."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _from_idx(contents: Contents) -> dict[str, Part]:
    parts = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        if f"{prefix}-images-idx3-ubyte" in contents:
            pixels = np.frombuffer(contents[f"{prefix}-images-idx3-ubyte"], np.uint8, offset=16)
            labels = np.frombuffer(contents[f"{prefix}-labels-idx1-ubyte"], np.uint8, offset=8)
            parts[part] = pixels.reshape(-1, 1, 28, 28), labels.astype(np.int64)
    return parts


def _from_cifar10(contents: Contents) -> dict[str, Part]:
    names = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)]
    train = b"".join(contents[name] for name in names)
    return {"train": _records(train, 1), "test": _records(contents["cifar-10-batches-bin/test_batch.bin"], 1)}


def _from_cifar100(contents: Contents) -> dict[str, Part]:
    return {part: _records(contents[f"cifar-100-binary/{part}.bin"], 2) for part in ("train", "test")}


def _records(data: bytes, label_bytes: int) -> Part:
    """CIFAR's records: label bytes, of which the last is the class, then 3 × 32 × 32 pixels."""
    records = np.frombuffer(data, np.uint8).reshape(-1, label_bytes + 3072)
    labels = records[:, label_bytes - 1].astype(np.int64)
    return np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, 3, 32, 32), labels
