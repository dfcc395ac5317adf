"""Chooses the images of a step for every worker, whatever the number of workers.

All workers draw the same permutation of the training images, so the *global* batch of a step depends only on seed,
epoch and step. Each worker takes a contiguous share of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.background import ahead
from pipeline.data.augmentation import Batch
from pipeline.data.imagesets import ImageSet
from pipeline.images.group import Group
from pipeline.images.randomness import generator

Transform = Callable[[Batch, torch.Generator], Tensor]

EVALUATION_BATCH = 100


class Part(NamedTuple):
    """Images that pass through the network together.

    ``weight`` is the part's share of the global batch times the number of workers. Gradients are *averaged* over
    workers, so the sum of ``weight * mean`` over all parts becomes the mean over the global batch.
    """

    images: Tensor
    labels: Tensor
    weight: float


class Batches:
    """The training images, step by step.

    Args:
        size: images in a global batch; the last one of an epoch may be smaller.
        examples: number of images to use.
        steps: steps per epoch.
        accumulate: number of parts in which a worker processes its share, to bound memory.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Transform,
        group: Group,
        *,
        size: int,
        seed: int,
        examples: int,
        steps: int,
        accumulate: int = 1,
    ) -> None:
        self.images, self.transform, self.group = images, transform, group
        self.size, self.seed, self.accumulate = size, seed, accumulate
        self.examples, self.steps = examples, steps
        self._orders: dict[int, Tensor] = {}

    def parts(self, epoch: int, step: int) -> list[Part]:
        """This worker's share of a global batch."""
        pieces = self.pieces(epoch, step)
        return [self._part(rows, weight, epoch, step, i) for i, (rows, weight) in enumerate(pieces)]

    def pieces(self, epoch: int, step: int) -> list[tuple[Tensor, float]]:
        """The rows and the weights of the parts."""
        rows = self.rows(epoch, step)
        share = self.group.share(rows)
        if not len(share):
            # The last batch has fewer images than there are workers: this worker takes part with weight zero.
            return [(rows[:1], 0.0)]
        weight = self.group.size / len(rows)
        return [(piece, weight * len(piece)) for piece in share.tensor_split(self.accumulate) if len(piece)]

    def after(self, epoch: int, step: int) -> tuple[int, int]:
        """The next step."""
        return (epoch + 1, 0) if step + 1 >= self.steps else (epoch, step + 1)

    def rows(self, epoch: int, step: int) -> Tensor:
        """The global batch."""
        return self.order(epoch)[step * self.size : (step + 1) * self.size]

    def order(self, epoch: int) -> Tensor:
        """The rows of an epoch."""
        if epoch not in self._orders:
            new = self.images.order(self.examples, generator(self.seed, "order", epoch))
            # Readers that are ahead ask for the next epoch while this one is still in use.
            self._orders = {known: rows for known, rows in self._orders.items() if known == epoch - 1} | {epoch: new}
        return self._orders[epoch]

    def _part(self, rows: Tensor, weight: float, epoch: int, step: int, piece: int) -> Part:
        noise = generator(self.seed, "augmentation", epoch, step, self.group.rank, piece)
        images = self.transform(_stored(self.images, rows, self.group.device), noise)
        return Part(images, self.images.labels[rows].to(self.group.device), weight)


class Ahead:
    """Prepares the images of the next step in a thread while the network works on this one; use it in a ``with`` block.

    What a step gets depends on its epoch and number alone, so results are those of :meth:`Batches.parts`.

    Args:
        threads: threads of torch for the preparation.
    """

    def __init__(self, batches: Batches, threads: int = 1) -> None:
        self.batches = batches
        self.waited = 0.0  # seconds that steps have waited for their images
        self._pool = ThreadPoolExecutor(1, "images", torch.set_num_threads, (threads,))
        self._next: tuple[tuple[int, int], Future[list[Part]]] | None = None

    def parts(self, epoch: int, step: int) -> list[Part]:
        """This worker's share of a global batch; starts preparing the next one."""
        began = time.monotonic()
        if self._next is None or self._next[0] != (epoch, step):  # the first step, and one after a resumed epoch
            self._prepare(epoch, step)
        assert self._next is not None
        parts = self._next[1].result()
        self.waited += time.monotonic() - began
        self._prepare(*self.batches.after(epoch, step))
        return parts

    def _prepare(self, epoch: int, step: int) -> None:
        self._next = (epoch, step), self._pool.submit(self.batches.parts, epoch, step)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


def in_order(images: ImageSet, rows: Tensor, transform: Transform, device: torch.device) -> Iterator[Part]:
    """Images for evaluation, a bounded number at a time; threads decode photographs ahead."""
    unused = torch.Generator()  # evaluation transforms are not random

    def part(some: Tensor) -> Part:
        pixels = transform(_stored(images, some, device), unused)
        return Part(pixels.to(device), images.labels[some].to(device), float(len(some)))

    if not images.ragged:
        yield from map(part, rows.split(EVALUATION_BATCH))
        return
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads, "images") as pool:
        yield from ahead(pool, part, rows.split(EVALUATION_BATCH), threads + 1)


def _stored(images: ImageSet, rows: Tensor, device: torch.device) -> Batch:
    """Stored images on the device that transforms them: bytes are a quarter of the network's input, a GPU is faster.

    Photographs of different sizes stay on the CPU until they form a batch.
    """
    taken = images.take(rows)
    return taken.to(device) if isinstance(taken, Tensor) else taken
