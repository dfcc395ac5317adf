"""Photographs for training: processes decode, crop and augment them ahead of the step that needs them.

torch's DataLoader runs the processes and keeps their batches in order. A batch depends on seed, epoch and rows alone:
every photograph has a generator of its own. The number of processes and of workers does not matter, and a training
that resumes inside an epoch gets the batches that it would have got.

A batch travels as bytes, through pinned memory if the device is a GPU, in one transfer; the device normalises it. A
thread fetches shards that will be needed soon from storage.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pipeline.console import say
from pipeline.data import augmentation as augmentations
from pipeline.data.augmentation import Augmentation, changed, normaliser, stacked
from pipeline.data.imagesets import ImageSet
from pipeline.errors import StudyError
from pipeline.images.batches import Batches, Part
from pipeline.images.randomness import generator

Wanted = tuple[int, list[int]]
"""An epoch and the rows of a part."""

PREFETCH = 2  # batches that each process has ready
RESTARTS = 3  # of processes that die, in one step
SHARDS_AHEAD = 16  # that a node fetches before images need them
FETCHERS = 4  # threads


class Photos(Dataset[Tensor | StudyError]):
    """What a loader process does: from rows to a batch of bytes."""

    def __init__(self, images: ImageSet, augmentation: Augmentation, seed: int) -> None:
        self.images, self.augmentation, self.seed = images, augmentation, seed

    def __getitem__(self, wanted: Wanted) -> Tensor | StudyError:
        epoch, rows = wanted
        try:
            return stacked([self.photo(epoch, row) for row in rows])
        except StudyError as error:  # the DataLoader would put a traceback into its message
            return error

    def photo(self, epoch: int, row: int) -> Tensor:
        """A photograph with its changes for this epoch; every process makes the same."""
        noise = generator(self.seed, "augmentation", epoch, row)
        return changed(self.images.shards.image(row), self.augmentation, noise)


class Steps:
    """Yields a worker's batches from a step on, without end: the next epoch follows this one."""

    def __init__(self, batches: Batches, epoch: int, step: int) -> None:
        self.batches, self.start = batches, (epoch, step)

    def __iter__(self) -> Iterator[Wanted]:
        epoch, step = self.start
        while True:
            for rows, _ in self.batches.pieces(epoch, step):
                yield epoch, rows.tolist()
            epoch, step = self.batches.after(epoch, step)


class Loader:
    """Gives the parts of each step, like :class:`pipeline.images.batches.Ahead`; use it in a ``with`` block.

    Args:
        processes: loader processes; with 0 this process does the work.
    """

    def __init__(self, batches: Batches, augmentation: str, normalisation: str, processes: int) -> None:
        self.batches, self.processes = batches, processes
        self.photos = Photos(batches.images, augmentations.augmentation(augmentation), batches.seed)
        self.normalise = normaliser(normalisation)
        self.waited = 0.0  # seconds that steps have waited for their images
        self._next: tuple[int, int] | None = None
        self._loaded: Iterator[Any] = iter(())
        self._fetching = Fetching(batches)
        batches.images.shards.check_room(SHARDS_AHEAD)

    def parts(self, epoch: int, step: int) -> list[Part]:
        """This worker's share of a global batch."""
        began = time.monotonic()
        if self._next != (epoch, step):
            self._start(epoch, step)
        self._fetching.look(epoch, step)
        device, pieces = self.batches.group.device, self.batches.pieces(epoch, step)
        stored = self._stored(epoch, step, len(pieces))
        self._next = self.batches.after(epoch, step)
        self.waited += time.monotonic() - began
        return [
            Part(
                self.normalise(pixels.to(device, non_blocking=True)),
                self.batches.images.labels[rows].to(device, non_blocking=True),
                weight,
            )
            for pixels, (rows, weight) in zip(stored, pieces, strict=True)
        ]

    def _stored(self, epoch: int, step: int, number: int) -> list[Tensor]:
        for left in reversed(range(RESTARTS + 1)):
            try:
                stored = [next(self._loaded) for _ in range(number)]
            except (RuntimeError, EOFError, OSError) as error:
                if not left or not self._of_a_dead_process(error):
                    raise
                say(f"a loader process died ({error}); starting new ones at epoch {epoch + 1}, step {step + 1}")
                self._start(epoch, step)
                continue
            for found in stored:
                if isinstance(found, StudyError):
                    raise found
            return stored
        raise AssertionError

    def _of_a_dead_process(self, error: Exception) -> bool:
        """Whether a loader process died. torch says so, unless the process was sending images: then its pipe breaks."""
        if isinstance(error, RuntimeError):
            return "exited unexpectedly" in str(error)
        return self.processes > 0 and isinstance(error, EOFError | ConnectionError | FileNotFoundError)

    def _start(self, epoch: int, step: int) -> None:
        settings: dict[str, Any] = {}
        if self.processes:
            # Not forked from this process: its threads, and those of S3's client, would leave locks behind.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])
            settings = {
                "multiprocessing_context": context,
                "prefetch_factor": PREFETCH,
                "worker_init_fn": partial(_enter, dict(os.environ)),
            }
        loader = DataLoader(
            self.photos,
            batch_size=None,
            sampler=Steps(self.batches, epoch, step),
            num_workers=self.processes,
            pin_memory=self.batches.group.device.type == "cuda",
            generator=torch.Generator(),  # of its own: it draws a seed
            **settings,
        )
        self._loaded = iter(loader)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loaded = iter(())  # ends the processes
        self._fetching.end()


def _enter(environment: dict[str, str], number: int) -> None:
    """Gives a loader process this process's environment: the server that forks it may be older than a setting."""
    os.environ.update(environment)


class Fetching:
    """Fetches shards from storage in the order in which an epoch needs them."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._pool = ThreadPoolExecutor(FETCHERS, "shards")
        self._epoch, self._asked = -1, 0
        self._shards = self._needed = np.empty(0, np.int64)  # shards, and the first position that needs each

    def look(self, epoch: int, step: int) -> None:
        """Starts to fetch what is needed soon after this step."""
        if not self.batches.images.shards.remote:
            return
        per_shard = self.batches.images.shards.per_shard
        if self._epoch != epoch:
            of_rows = self.batches.order(epoch).numpy() // per_shard
            shards, first = np.unique(of_rows, return_index=True)
            order = first.argsort()
            self._epoch, self._shards, self._needed = epoch, shards[order], first[order]
            self._asked = 0
        horizon = step * self.batches.size + SHARDS_AHEAD * per_shard
        while self._asked < len(self._shards) and self._needed[self._asked] < horizon:
            # A failure is reported where an image of the shard is read: that process tries again, and raises.
            self._pool.submit(self.batches.images.shards.fetch, int(self._shards[self._asked]))
            self._asked += 1

    def end(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
