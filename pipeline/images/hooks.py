"""Hooks for Ray Train: nodes fetch data before workers form a group; a lack of memory causes no restarts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.train import UserCallback
from ray.train.torch import TorchConfig

from pipeline.errors import StudyError
from pipeline.images import memory, workers
from pipeline.images.job import Data, Job


@dataclass
class FetchFirst(TorchConfig):
    """Forms Ray's process group once all nodes have the training's data.

    Fetching may take a node minutes. Within a group, the other workers would wait for it in a collective operation,
    which has a timeout.
    """

    job: Job | None = None

    @property
    def backend_cls(self) -> Any:
        return _FetchesFirst


_Torch: Any = TorchConfig().backend_cls


class _FetchesFirst(_Torch):  # Ray's class has no public name
    def on_start(self, worker_group: Any, backend_config: FetchFirst) -> None:
        worker_group.execute(fetch, backend_config.job)
        super().on_start(worker_group, backend_config)


def fetch(job: Job) -> None:
    """Fetches the data of a training to this node. Ray would retry after a failure; a note ends the workers instead."""
    try:
        _fetch(job.data)
    except StudyError as error:
        workers.note(job, error)


def _fetch(data: Data) -> None:
    if data.contents is not None:
        data.contents.here()
    if data.weights is not None:
        _fetch(data.weights)


class NotInVain(UserCallback):
    """Ends a training whose workers ran out of memory: the workers that Ray restarts find a note and exit."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in worker_exceptions.items():
            why = memory.explained(error, self.job.cell, f"seed {self.job.seed}, worker {rank}")
            if why is not None:
                workers.note(self.job, why)
