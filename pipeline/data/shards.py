"""Reads photographs from shards (:mod:`pipeline.data.shard_format`), on this machine or in storage."""

from __future__ import annotations

import io
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Generator, Tensor

from pipeline import large_files
from pipeline.console import say
from pipeline.data.shard_format import shard_name
from pipeline.data.summaries import read_array, unreadable
from pipeline.errors import StudyError

FORMATS = ("JPEG", "PNG")
WINDOW = 64  # shards that are mixed at a time


@dataclass
class Shards:
    """The shards of one part. Files are opened for each read: the node's copies may be deleted at any time."""

    folder: Path
    part: str
    per_shard: int

    def __post_init__(self) -> None:
        self.places = read_array(self.folder / f"{self.part}_places.npy")
        self.remote = large_files.is_fetched(self.folder)
        if not self.remote:
            self._check_sizes()

    def image(self, row: int) -> Tensor:
        """uint8 [3, height, width]; not contiguous, because a crop is copied anyway."""
        with Image.open(io.BytesIO(self.read(row)), formats=FORMATS) as image:
            return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def read(self, row: int) -> bytes:
        """The file of a row. A damaged copy on this node is fetched again, once."""
        name = shard_name(self.part, row // self.per_shard)
        try:
            return self._read(name, row)
        except (OSError, ValueError) as error:
            path = self.folder / name
            if not large_files.forget(self.folder, name):
                raise unreadable(path, error) from error
            say(f"{path}: the copy on this node cannot be read ({error}); fetching it again")
        try:
            return self._read(name, row)
        except (OSError, ValueError) as error:
            raise unreadable(self.folder / name, error) from error

    def _read(self, name: str, row: int) -> bytes:
        offset, length, crc = (int(number) for number in self.places[row])
        file = os.open(large_files.local(self.folder, name), os.O_RDONLY)
        try:
            data = os.pread(file, length, offset)
        finally:
            os.close(file)
        if len(data) != length or zlib.crc32(data) != crc:
            raise ValueError(f"its image {row % self.per_shard} is cut off or damaged: its CRC-32 is not {crc:08x}")
        return data

    def _check_sizes(self) -> None:
        for begin in range(0, len(self.places), self.per_shard):
            offset, length, _ = (int(number) for number in self.places[begin : begin + self.per_shard][-1])
            path = self.folder / shard_name(self.part, begin // self.per_shard)
            try:
                size = path.stat().st_size
                if size != offset + length:
                    raise ValueError(f"it has {size} bytes instead of {offset + length}")
            except (OSError, ValueError) as error:
                raise unreadable(path, error) from error

    def order(self, examples: int, generator: Generator) -> Tensor:
        """A random order of the first ``examples`` rows that needs only some shards at a time.

        The shards come in random order, and each image falls back by up to ``WINDOW`` shards. At any moment the images
        come from about that many shards; a new one is needed whenever as many images as a shard has are done. A set of
        no more than ``WINDOW`` shards gets a uniform permutation.
        """
        window = WINDOW * self.per_shard
        if examples <= window:
            return torch.randperm(examples, generator=generator)
        rows = torch.arange(examples)
        place = torch.randperm(-(-examples // self.per_shard), generator=generator)  # of each shard in the sequence
        delay = window * torch.rand(examples, generator=generator, dtype=torch.float64)
        return (place[rows // self.per_shard] * self.per_shard + rows % self.per_shard + delay).argsort(stable=True)

    def check_room(self, ahead: int) -> None:
        """Checks that a node may keep the shards that an order mixes and the next ``ahead`` ones.

        With less room, images would need shards that were just deleted.
        """
        numbers = len(self.places) // self.per_shard + 1
        needed = int(self.places[:, 1].sum()) * min(1.0, (WINDOW + ahead + 2) / numbers)
        if self.remote and large_files.limit() < needed:
            raise StudyError(
                f"{large_files.LIMIT}={os.environ[large_files.LIMIT]}: an epoch of {self.folder.name} needs "
                f"{needed / 1e9:.3g} GB at a time; write at least {math.ceil(needed / 1e8) / 10:g}"
            )

    def fetch(self, number: int) -> None:
        """Makes sure that this node has a shard."""
        large_files.local(self.folder, shard_name(self.part, number))
