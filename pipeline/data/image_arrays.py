"""Image sets of one size: from their official files to arrays in a folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data import image_sources, splits
from pipeline.data.image_sources import Contents
from pipeline.data.sources import CACHE
from pipeline.errors import StudyError
from pipeline.params import Dataset
from pipeline.registry import resolve, spelled
from pipeline.registry.images import IMAGES, KnownImages, OwnImages

Part = tuple[np.ndarray, np.ndarray]
"""Images, uint8 [n, channels, height, width], and labels, int64 [n]."""


@dataclass(frozen=True)
class FoundImages:
    """Arrays by file name, and the summary."""

    arrays: dict[str, np.ndarray]
    summary: dict[str, Any]

    def write(self, folder: Path) -> None:
        for name, array in self.arrays.items():
            np.save(folder / f"{name}.npy", array)


def find_images(dataset: Dataset, cache: Path = CACHE) -> FoundImages:
    """The image set that an entry of params.yaml names, checked and split."""
    known = IMAGES[dataset.name]
    parts, digest, source = _own(known) if isinstance(known, OwnImages) else _official(dataset.name, known, cache)
    arrays: dict[str, np.ndarray] = {}
    for part, (images, labels) in parts.items():
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    if "train" in parts:
        rows = len(parts["train"][1])
        train, validation = splits.validation(rows, dataset.validation or 0, dataset.name)
        arrays |= {"train_index": train, "validation_index": validation}
    summary = {
        "digest": digest,
        "source": source,
        "classes": list(known.classes),
        "shape": list(parts["test"][0].shape[1:]),
        "rows": {part: len(labels) for part, (_, labels) in parts.items()},
        "validation": len(arrays.get("validation_index", ())),
    }
    return FoundImages(arrays, summary)


def _official(name: str, known: KnownImages, cache: Path) -> tuple[dict[str, Part], str, str]:
    contents, source = image_sources.find(name, known, cache)
    parts = {"idx": _from_idx, "cifar10": _from_cifar10, "cifar100": _from_cifar100}[known.form](contents)
    return parts, _digest([contents[file.name] for file in known.files]), source


def _own(known: OwnImages) -> tuple[dict[str, Part], str, str]:
    """Calls the function of another package that reads the images, and checks the result against the entry."""
    parts: dict[str, Part] = resolve(known.read)()
    if "test" not in parts or not parts.keys() <= {"train", "test"}:
        raise _not_as_said(
            known, f"the parts {', '.join(parts) or 'none'}", "test, and train if it has training images"
        )
    for part, (images, labels) in parts.items():
        shape = (len(labels), known.channels, known.size, known.size)
        if images.dtype != np.uint8 or images.shape != shape:
            raise _not_as_said(known, f"{part} images {images.dtype} {images.shape}", f"uint8 {shape}")
        if labels.dtype != np.int64 or len(labels) == 0 or not 0 <= labels.min() <= labels.max() < len(known.classes):
            raise _not_as_said(known, f"{part} labels {labels.dtype}", f"int64 from 0 to {len(known.classes) - 1}")
    training = len(parts["train"][1]) if "train" in parts else 0
    if training != known.training:
        raise _not_as_said(known, f"{training} training images", str(known.training))
    ordered = [array for part in sorted(parts) for array in parts[part]]
    return parts, _digest([np.ascontiguousarray(array).tobytes() for array in ordered]), known.source


def _not_as_said(known: OwnImages, given: str, expected: str) -> StudyError:
    return StudyError(
        f"{known.name}: {spelled(known.read)} returns {given}, but its entry says {expected}; change one of the two"
    )


def _digest(contents: list[bytes]) -> str:
    """SHA-256 of the concatenated official files or arrays."""
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
    """Splits CIFAR's records: label bytes, the last of which is the class, then 3 × 32 × 32 pixels."""
    records = np.frombuffer(data, np.uint8).reshape(-1, label_bytes + 3072)
    labels = records[:, label_bytes - 1].astype(np.int64)
    return np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, 3, 32, 32), labels
