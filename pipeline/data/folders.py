"""Folders of photographs with one subfolder per class, decoded once. The smaller side gets a fixed length; the longer
one keeps the aspect ratio, so sizes differ.

A part consists of one file of pixels and a table of (offset, height, width): reading a batch takes a few reads and no
decoding. Images are decoded class by class into work/; after an interruption, finished classes are not decoded again.
The prepared folder holds hard links to the files in work/, which is emptied once the folder is in place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from pipeline import files
from pipeline.console import Progress, progress, say
from pipeline.data import splits
from pipeline.data.sources import MIRROR, MissingData, mirror
from pipeline.errors import StudyError
from pipeline.params import Dataset

WORK = Path("work/prepare")
ENDINGS = {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"}
# Pillow tries only these formats, whatever the file's name. For PostScript it would start another program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SHOWN = 50  # unreadable files that the error names
AHEAD = 64  # images decoded ahead of writing; bounds memory


@dataclass(frozen=True)
class Pieces:
    """A decoded part: the path of its pixels in work/, and the contents of its other files."""

    pixels: Path
    layout: np.ndarray  # int64 [n, 3]: offset, height, width
    labels: np.ndarray  # int64 [n]
    digest: str


@dataclass(frozen=True)
class FoundFolder:
    work: Path  # holds the decoded pixels; not needed once everything is written
    parts: dict[str, Pieces]
    indices: dict[str, np.ndarray]
    summary: dict[str, Any]

    def write(self, folder: Path) -> None:
        for name, index in self.indices.items():
            np.save(folder / f"{name}_index.npy", index)
        for part, pieces in self.parts.items():
            np.save(folder / f"{part}_layout.npy", pieces.layout)
            np.save(folder / f"{part}_labels.npy", pieces.labels)
            _link(pieces.pixels, folder / f"{part}_pixels.bin")


def _link(path: Path, name: Path) -> None:
    """Gives the file a second name: the decoded pixels stay in work/ until the whole folder is in place."""
    try:
        os.link(path, name)
    except OSError:  # the name is on another disk, or the disk has no hard links
        shutil.copyfile(path, name)


def find_folder(dataset: Dataset, work: Path = WORK) -> FoundFolder:
    """Decodes and splits the folder of images that an entry of params.yaml names."""
    listings = {part: _listing(dataset, part) for part in ("train", "test") if getattr(dataset, part) is not None}
    if "test" not in listings:
        raise StudyError(f"datasets.{dataset.name}: needs `test`, a folder with one subfolder of images per class")
    classes = list(listings["test"])
    _check_classes(dataset, listings)
    if dataset.size is None or dataset.size < 1:
        raise StudyError(f"datasets.{dataset.name}.size: {dataset.size}; expected the smaller side in pixels")
    indices = {}
    if "train" in listings:
        rows = sum(map(len, listings["train"].values()))
        train, validation = splits.validation(rows, dataset.validation or 0, dataset.name)
        indices = {"train": train, "validation": validation}
    parts = _decode(dataset, listings, work)
    summary = {
        "digest": hashlib.sha256("".join(pieces.digest for pieces in parts.values()).encode()).hexdigest(),
        "source": ", ".join(str(getattr(dataset, part)) for part in listings),
        "classes": classes,
        "size": dataset.size,
        "rows": {part: len(pieces.labels) for part, pieces in parts.items()},
        "validation": len(indices.get("validation", ())),
    }
    return FoundFolder(work / dataset.name, parts, indices, summary)


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


def _decode(dataset: Dataset, listings: dict[str, Listing], work: Path) -> dict[str, Pieces]:
    total = sum(len(paths) for listing in listings.values() for paths in listing.values())
    unreadable: list[str] = []
    decoders = [
        Decoder(work / dataset.name / part, listing, dataset.size or 0, unreadable)
        for part, listing in listings.items()
    ]
    done = sum(decoder.done() for decoder in decoders)
    if done:
        say(f"{dataset.name}: {done} of {total} images are already decoded")
    with warnings.catch_warnings(), progress(dataset.name, total, "images", done) as bar:
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for decoder in decoders:
            decoder.run(bar)
    if unreadable:
        more = f"\n  and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
        shown = "".join(f"\n  {line}" for line in unreadable[:SHOWN])
        raise StudyError(
            f"datasets.{dataset.name}: {len(unreadable)} of {total} images cannot be read:{shown}{more}\n"
            "Replace or remove these files and run the same command again; finished classes are not decoded again."
        )
    return {part: decoder.pieces() for part, decoder in zip(listings, decoders, strict=True)}


class Decoder:
    """Decodes one part class by class and appends the pixels to one file; a note per finished class says where."""

    def __init__(self, folder: Path, listing: Listing, size: int, unreadable: list[str]) -> None:
        self.listing, self.size, self.unreadable = listing, size, unreadable
        self.pixels, self._notes = folder / "pixels.bin", folder / "classes"
        self._marks = {name: _mark(paths, size) for name, paths in listing.items()}
        self._done = self._read_notes()

    def done(self) -> int:
        return sum(len(self.listing[name]) for name in self._done)

    def run(self, bar: Progress) -> None:
        if self.pixels.exists() and len(self._done) == len(self.listing) and self.pixels.stat().st_size == self._end():
            return
        try:
            self.pixels.parent.mkdir(parents=True, exist_ok=True)
            self._unlink()
            with self.pixels.open("ab") as file, ThreadPoolExecutor(os.cpu_count()) as pool:
                self._append(file, pool, bar)
        except OSError as error:
            raise StudyError(
                f"{self.pixels}: cannot be written ({error.strerror or error}); free some space or make its folder "
                "writable, then run the same command again"
            ) from error

    def _end(self) -> int:
        return max((note["end"] for note in self._done.values()), default=0)

    def _unlink(self) -> None:
        """Makes the file our own before we append to it: if an earlier run was killed before it emptied work/, the
        prepared folder may still hold a hard link to it.
        """
        if self.pixels.exists() and self.pixels.stat().st_nlink > 1:
            with files.replacing(self.pixels) as own:
                shutil.copyfile(self.pixels, own)

    def _append(self, file: IO[bytes], pool: ThreadPoolExecutor, bar: Progress) -> None:
        end = self._end()
        for name, paths in self.listing.items():
            if name not in self._done:
                file.truncate(end)
                note = self._class(paths, end, file, pool, bar)
                if note is not None:
                    self._done[name] = {"mark": self._marks[name], **note}
                    end = note["end"]
                    files.write_json(self._notes / f"{name}.json", self._done[name])
        file.truncate(end)

    def pieces(self) -> Pieces:
        entries = [self._done[name] for name in self.listing]
        layout, labels = [], []
        for label, entry in enumerate(entries):
            offset = entry["start"]
            for height, width in entry["sizes"]:
                layout.append((offset, height, width))
                labels.append(label)
                offset += 3 * height * width
        text = "".join(f"{name} {entry['digest']}\n" for name, entry in zip(self.listing, entries, strict=True))
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Pieces(self.pixels, np.array(layout, np.int64), np.array(labels, np.int64), digest)

    def _class(
        self, paths: list[Path], start: int, file: IO[bytes], pool: ThreadPoolExecutor, bar: Progress
    ) -> dict[str, Any] | None:
        """Appends the images of a class; returns None if one of them cannot be read."""
        sizes, digest, end, whole = [], hashlib.sha256(), start, True
        for image in _decoded(paths, self.size, pool):
            bar.advance()
            if isinstance(image, str):
                self.unreadable.append(image)
                whole = False
            elif whole:
                data = image.tobytes()
                file.write(data)
                sizes.append(image.shape[1:])
                digest.update(f"{image.shape}".encode() + data)
                end += len(data)
        file.flush()
        return {"start": start, "end": end, "sizes": sizes, "digest": digest.hexdigest()} if whole else None

    def _read_notes(self) -> dict[str, dict[str, Any]]:
        """The notes of the classes whose files, size and pixels are unchanged."""
        length = self.pixels.stat().st_size if self.pixels.exists() else 0
        same = {}
        for name, mark in self._marks.items():
            path = self._notes / f"{name}.json"
            if path.exists():
                note = files.read_json(path, "python -m pipeline.prepare")
                if note["mark"] == mark and note["end"] <= length:
                    same[name] = note
        return same


def _decoded(paths: list[Path], size: int, pool: ThreadPoolExecutor) -> Iterable[np.ndarray | str]:
    for begin in range(0, len(paths), AHEAD):
        yield from pool.map(lambda path: _image(path, size), paths[begin : begin + AHEAD])


def _image(path: Path, size: int) -> np.ndarray | str:
    """uint8 [3, height, width], or why it cannot be read."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            rgb = image.convert("RGB")
    # On a broken file Pillow's decoders may raise any exception; each of them means that the file is unreadable.
    except Exception as error:
        return f"{path}: {error}"
    shorter = min(rgb.size)
    if shorter != size:
        width, height = (size if side == shorter else int(size * side / shorter) for side in rgb.size)
        rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def _mark(paths: list[Path], size: int) -> str:
    """A digest that changes when a file of the class or the size changes."""
    stats = [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths]
    return hashlib.sha256(repr((size, stats)).encode()).hexdigest()
