"""Writes photographs of any size and format as JPEGs of one size, in shards (:mod:`pipeline.data.shard_format`).

Threads decode, resize and encode images ahead of the one that writes; Pillow works outside of Python's lock. A shard
and its note are complete or absent: after an interruption only the shards without a note are written.
"""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipeline import files
from pipeline.background import ahead
from pipeline.console import Progress
from pipeline.data import shard_format
from pipeline.errors import StudyError

# Pillow tries only these formats, whatever the file's name. For PostScript it would start another program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
QUALITY = 90  # of the JPEGs: 26 kB for a photograph of 256 pixels, 37.5 dB from the resized pixels
LOSSLESS_BELOW = 64  # pixels: smaller pictures stay exact, as PNGs
AHEAD = 8  # images in work for each thread; bounds memory


@dataclass(frozen=True)
class Written:
    """A part in shards: their paths in work/, and what belongs into the index."""

    shards: list[Path]
    checksums: dict[str, str]  # of the shards, by name
    places: np.ndarray  # int64 [n, 3]: offset, length, CRC-32
    labels: np.ndarray  # int64 [n]

    @property
    def digest(self) -> str:
        labels = hashlib.sha256(self.labels.tobytes()).hexdigest()
        return hashlib.sha256("".join([*self.checksums.values(), labels]).encode()).hexdigest()


class Writer:
    """Writes one part.

    Args:
        paths: the photographs in the order of their rows.
        size: pixels of the smaller side.
        unreadable: gets a line for each file that cannot be read.
    """

    def __init__(
        self, folder: Path, part: str, paths: list[Path], labels: np.ndarray, size: int, unreadable: list[str]
    ) -> None:
        self.folder, self.part, self.labels, self.size, self.unreadable = folder, part, labels, size, unreadable
        each = shard_format.PER_SHARD
        self.pieces = [paths[begin : begin + each] for begin in range(0, len(paths), each)]
        self._marks = [_mark(piece, size) for piece in self.pieces]
        self._notes = {number: note for number in range(len(self.pieces)) if (note := self._note(number))}

    def done(self) -> int:
        return sum(len(self.pieces[number]) for number in self._notes)

    def run(self, bar: Progress) -> None:
        missing = [number for number in range(len(self.pieces)) if number not in self._notes]
        threads = len(os.sched_getaffinity(0))
        with ThreadPoolExecutor(threads) as pool:
            paths = chain.from_iterable(self.pieces[number] for number in missing)
            pictures = ahead(pool, partial(encoded, size=self.size), paths, AHEAD * threads)
            for number in missing:
                self._write(number, islice(pictures, len(self.pieces[number])), bar)

    def written(self) -> Written:
        notes = [self._notes[number] for number in range(len(self.pieces))]
        places = np.array([place for note in notes for place in note["places"]], np.int64).reshape(-1, 3)
        shards = [self._shard(number) for number in range(len(notes))]
        sums = {path.name: note["sha256"] for path, note in zip(shards, notes, strict=True)}
        return Written(shards, sums, places, self.labels)

    def _shard(self, number: int) -> Path:
        return self.folder / shard_format.shard_name(self.part, number)

    def _note(self, number: int) -> dict[str, Any] | None:
        """The note of a shard that is written and whose photographs are unchanged."""
        shard = self._shard(number)
        path = shard.with_suffix(".json")
        if not (shard.exists() and path.exists()):
            return None
        note: dict[str, Any] = files.read_json(path, "python -m pipeline.prepare")
        whole = note["mark"] == self._marks[number] and note["bytes"] == shard.stat().st_size
        return note if whole else None

    def _write(self, number: int, pictures: Iterable[bytes | str], bar: Progress) -> None:
        """Writes a shard, unless one of its photographs cannot be read."""
        shard, places, digest, end, bad = self._shard(number), [], hashlib.sha256(), 0, 0
        with files.replacing(shard) as temporary, temporary.open("wb") as file:
            for picture in pictures:
                bar.advance()
                if isinstance(picture, str):
                    self.unreadable.append(picture)
                    bad += 1
                    continue
                file.write(picture)
                digest.update(picture)
                places.append((end, len(picture), zlib.crc32(picture)))
                end += len(picture)
        if bad:
            files.remove(shard)
            return
        note = {"mark": self._marks[number], "bytes": end, "sha256": digest.hexdigest(), "places": places}
        files.write_json(shard.with_suffix(".json"), note)
        self._notes[number] = note


def encoded(path: Path, size: int) -> bytes | str:
    """A JPEG or PNG whose smaller side has this many pixels, or why the file cannot be read."""
    buffer = io.BytesIO()
    try:
        resized(path, size).save(buffer, "PNG" if size < LOSSLESS_BELOW else "JPEG", quality=QUALITY)
    # On a broken file Pillow's decoders may raise any exception; each of them means that the file is unreadable.
    except Exception as error:
        return f"{path}: {error}"
    return buffer.getvalue()


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """An image file, for a ``with`` block that only decodes it. What is no image, or broken, raises a StudyError."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            yield image
    except Exception as error:  # Pillow's decoders have no common exception; each one means an unreadable file
        raise StudyError(f"{path}: cannot be read as an image ({error}); replace or remove it") from error


def resized(path: Path, size: int) -> Image.Image:
    """The photograph in colour; the longer side keeps the aspect ratio."""
    with Image.open(path, formats=FORMATS) as image:
        return scaled(image.convert("RGB"), size)


def scaled(image: Image.Image, size: int) -> Image.Image:
    """The image with this many pixels on its shorter side."""
    shorter = min(image.size)
    if shorter == size:
        return image
    width, height = (size if side == shorter else int(size * side / shorter) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _mark(paths: list[Path], size: int) -> str:
    """A digest that changes when a photograph of the shard, the size or the quality changes."""
    stats = [(path.parts[-2:], (stat := path.stat()).st_size, stat.st_mtime_ns) for path in paths]
    return hashlib.sha256(repr((size, QUALITY, stats)).encode()).hexdigest()
