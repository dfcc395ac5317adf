"""Folders of photographs with one subfolder per class. The smaller side gets a fixed length; the longer one keeps the
aspect ratio, so sizes differ.

They become JPEGs in shards (:mod:`pipeline.data.shard_format`), which are written into work/; after an interruption,
finished shards are not written again. The prepared folder holds hard links to the shards in work/, which is emptied
once the folder is in place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipeline import files
from pipeline.blobs import CHECKSUMS
from pipeline.console import progress, say
from pipeline.data import shard_format, splits
from pipeline.data.shard_writing import Writer, Written
from pipeline.data.sources import MIRROR, MissingData, mirror
from pipeline.errors import StudyError
from pipeline.params import Dataset

WORK = Path("work/prepare")
ENDINGS = {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}
SHOWN = 50  # unreadable files that the error names


@dataclass(frozen=True)
class FoundFolder:
    work: Path  # holds the shards; not needed once everything is in place
    parts: dict[str, Written]
    summary: dict[str, Any]

    def write(self, folder: Path) -> None:
        for part, written in self.parts.items():
            np.save(folder / f"{part}_places.npy", written.places)
            np.save(folder / f"{part}_labels.npy", written.labels)
            for shard in written.shards:
                _link(shard, folder / shard.name)
        sums = {name: digest for written in self.parts.values() for name, digest in written.checksums.items()}
        files.write_json(folder / CHECKSUMS, sums)


def _link(path: Path, name: Path) -> None:
    """Gives the file a second name: the shards stay in work/ until the whole folder is in place."""
    try:
        os.link(path, name)
    except OSError:  # the name is on another disk, or the disk has no hard links
        shutil.copyfile(path, name)


def find_folder(dataset: Dataset, work: Path = WORK) -> FoundFolder:
    """Splits the folder of images that an entry of params.yaml names, and writes its shards."""
    listings = {part: _listing(dataset, part) for part in ("train", "test") if getattr(dataset, part) is not None}
    if "test" not in listings:
        raise StudyError(f"datasets.{dataset.name}: needs `test`, a folder with one subfolder of images per class")
    classes = list(listings["test"])
    _check_classes(dataset, listings)
    if dataset.size is None or dataset.size < 1:
        raise StudyError(f"datasets.{dataset.name}.size: {dataset.size}; expected the smaller side in pixels")
    parts = _written(dataset, _rows(dataset, listings), work)
    summary = {
        "digest": hashlib.sha256("".join(written.digest for written in parts.values()).encode()).hexdigest(),
        "source": ", ".join(str(getattr(dataset, part)) for part in listings),
        "classes": classes,
        "size": dataset.size,
        "per_shard": shard_format.PER_SHARD,
        "rows": {part: sum(map(len, listing.values())) for part, listing in listings.items()},
        "validation": len(parts["validation"].labels) if "validation" in parts else 0,
    }
    return FoundFolder(work / dataset.name, parts, summary)


Rows = tuple[list[Path], np.ndarray]
"""The photographs of a part in the order of their rows, and their labels."""


def _rows(dataset: Dataset, listings: dict[str, Listing]) -> dict[str, Rows]:
    """Test rows are in the order of their names, the others in random order."""
    rows = {}
    for name, listing in listings.items():
        paths = [path for found in listing.values() for path in found]
        labels = np.repeat(np.arange(len(listing), dtype=np.int64), [len(found) for found in listing.values()])
        chosen = {"test": np.arange(len(paths))}
        if name == "train":
            train, validation = splits.shuffled(len(paths), dataset.validation or 0, dataset.name)
            chosen = {"train": train, "validation": validation}
        for part, order in chosen.items():
            rows[part] = [paths[row] for row in order], labels[order]
    return rows


Listing = dict[str, list[Path]]
"""The image files of each class; classes and files are sorted by name."""


def _listing(dataset: Dataset, part: str) -> Listing:
    key = f"datasets.{dataset.name}.{part}"
    folder = _place(Path(getattr(dataset, part)).expanduser())
    if not folder.is_dir():
        raise MissingData(
            f"{key}: the folder {folder} exists neither here nor in the mirror ({MIRROR}); correct the path, put the "
            "images there, or set study.missing_data to skip"
        )
    listing = {
        child.name: sorted(path for path in child.rglob("*") if path.suffix.lower() in ENDINGS)
        for child in sorted(folder.iterdir())
        if child.is_dir() and not child.name.startswith(".")
    }
    if not listing:
        raise StudyError(f"{key}: {folder} has no subfolders; expected one subfolder of images per class")
    empty = [name for name, paths in listing.items() if not paths]
    if empty:
        raise StudyError(f"{key}: no images in the class {', '.join(empty)} of {folder}; fill or remove the subfolder")
    return listing


def _place(folder: Path) -> Path:
    """Looks for a relative path in the mirror first."""
    place = mirror()
    return place / folder if place is not None and (place / folder).is_dir() else folder


def _check_classes(dataset: Dataset, listings: dict[str, Listing]) -> None:
    if "train" not in listings:
        return
    train, test = set(listings["train"]), set(listings["test"])
    if train != test:
        raise StudyError(
            f"datasets.{dataset.name}: train and test must have the same classes; only in train: "
            f"{', '.join(sorted(train - test)) or 'none'}; only in test: {', '.join(sorted(test - train)) or 'none'}"
        )
    if len(train) == 1:
        raise StudyError(
            f"datasets.{dataset.name}: there is one class, {train.pop()}, so there is nothing to tell apart; expected "
            "one subfolder of images for each of two classes or more"
        )


def _written(dataset: Dataset, rows: dict[str, Rows], work: Path) -> dict[str, Written]:
    total = sum(len(paths) for paths, _ in rows.values())
    unreadable: list[str] = []
    writers = {
        part: Writer(work / dataset.name / part, part, paths, labels, dataset.size or 0, unreadable)
        for part, (paths, labels) in rows.items()
    }
    done = sum(writer.done() for writer in writers.values())
    if done:
        say(f"{dataset.name}: {done} of {total} images are already written")
    with warnings.catch_warnings(), progress(dataset.name, total, "images", done) as bar:
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for writer in writers.values():
            writer.run(bar)
    if unreadable:
        more = f"\n  and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
        shown = "".join(f"\n  {line}" for line in unreadable[:SHOWN])
        raise StudyError(
            f"datasets.{dataset.name}: {len(unreadable)} of {total} images cannot be read:{shown}{more}\n"
            "Replace or remove these files and run the same command again; finished shards are not written again."
        )
    return {part: writer.written() for part, writer in writers.items()}
