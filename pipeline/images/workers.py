"""Runs the loop under Ray Train, with the requested number of workers, and restarts workers that die.

Several workers are processes that Ray Train's controller starts, watches and restarts. One worker runs in Ray Train's
local mode, in the Ray task that drives it, and Ray restarts the task: the controller and its helpers would be five more
processes, which take longer to start than a short training takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipeline import cluster, storage
from pipeline.console import say
from pipeline.errors import Diverged, OutOfMemory, StudyError
from pipeline.images import large_batches, loop, memory
from pipeline.images.group import Group
from pipeline.images.job import Job
from pipeline.params import Cell
from pipeline.storage import Anywhere

RESTARTS = 3
HISTORY = "history.json"  # the epochs so far, for processes that watch
STOP = "stop"  # a file of this name ends a training cleanly
STOPPED = "stopped.json"  # why a training cannot continue; restarted workers exit at once
KINDS: dict[str, type[StudyError]] = {"diverged": Diverged, "memory": OutOfMemory, "other": StudyError}


def start(job: Job, workers: int) -> Any:
    """Starts the Ray task that trains a job on its own workers; the result is in the job's folder."""
    import ray

    storage.remove(job.state / STOPPED)
    if workers > 1:
        waits = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=cluster.this_node())
        return waits(fit).remote(job, workers)
    needs = job.cell.resources.per_worker
    trains = ray.remote(
        num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0.0), max_retries=RESTARTS, retry_exceptions=True
    )
    return trains(_train_alone).remote(job)


def _train_alone(job: Job) -> None:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    local = ScalingConfig(num_workers=0, use_gpu=job.cell.resources.gpu)
    TorchTrainer(_work, train_loop_config={"job": job}, scaling_config=local).fit()


def fit(job: Job, workers: int, callbacks: Callable[[], list[Any]] = list) -> None:
    """Trains a job on several workers and blocks until they end. The result is in the job's folder.

    Args:
        callbacks: makes Ray Train's callbacks in the process that uses them.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from pipeline.images.hooks import FetchFirst, NotInVain

    rays_own = job.state / "ray"
    storage.remove(rays_own)  # Ray would resume from its own state; only ours is complete after a kill
    # Given a range, Ray restarts with the remaining workers when nodes are lost, instead of waiting for new nodes.
    fewest_workers = fewest(job.cell, workers)
    trainer = TorchTrainer(
        _work,
        train_loop_config={"job": job},
        torch_config=FetchFirst(job=job),
        scaling_config=ScalingConfig(
            num_workers=(fewest_workers, workers) if fewest_workers < workers else workers,  # type: ignore[arg-type]
            use_gpu=job.cell.resources.gpu,
            resources_per_worker=job.cell.resources.per_worker,
        ),
        run_config=RunConfig(
            name=f"{job.cell.name}-{job.state.name}",
            storage_path=str(rays_own),
            failure_config=FailureConfig(max_failures=RESTARTS),
            callbacks=[NotInVain(job), *callbacks()],  # type: ignore[list-item]  # Ray's hint is of its old callbacks
        ),
    )
    trainer.fit()


def affordable(cell: Cell) -> tuple[int, int]:
    """How many workers a training gets in the connected cluster, and how many trainings fit at a time."""
    asked, needs = cell.resources.workers, cell.resources.per_worker
    nodes = cluster.grown(needs, asked)
    most = cluster.room(nodes, needs)
    if most >= asked:
        large_batches.say_if_small(cell, asked)
        return asked, most // asked
    has = ", ".join(f"{sum(node.get(kind, 0.0) for node in nodes):g} {kind}" for kind in needs)
    wanted = ", ".join(f"{asked * amount:g} {kind}" for kind, amount in needs.items())
    if most and cell.resources.allow_fewer_workers:
        say(f"resources.workers: {asked} workers need {wanted}, the cluster has {has}; training with {most}")
        return most, 1
    raise StudyError(
        f"resources.workers: {asked} workers need {wanted}, but the cluster has {has} on {len(nodes)} nodes, where "
        f"{most} fit, because a worker cannot span nodes; lower resources.workers or resources.cpus_per_worker, set "
        "resources.gpu to false, or set resources.allow_fewer_workers to true to train the same global batches on fewer"
    )


def fewest(cell: Cell, asked: int) -> int:
    """The smallest number of workers that a training starts with."""
    return 1 if cell.resources.allow_fewer_workers else asked


class Shortage:
    """Logs what lost and returning nodes mean for the running trainings."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.room, self.short = math.inf, False  # at the last look

    def look(self, trainings: int, workers: int) -> None:
        """Compares the nodes of the cluster with the need of this many trainings, each of this many workers."""

        nodes = cluster.nodes()
        room, needed = cluster.room(nodes, self.cell.resources.per_worker), trainings * workers
        more, fewer, was_short = room > self.room, room < self.room, self.short
        self.room, self.short = room, room < needed
        if self.short and (more or fewer):
            event = "a node is lost" if fewer else "a node is back"
            served = math.ceil if fewest(self.cell, workers) < workers else math.floor  # Ray serves one after the other
            go_on = min(trainings, served(room / workers))
            say(
                f"{self.cell.name}: {event}; {needed} workers are needed, {room} fit on the {len(nodes)} available "
                f"nodes, so {self._consequence(go_on, trainings, room)}"
            )
        elif more and was_short:
            say(f"{self.cell.name}: there is room for {needed} workers again, so training continues with them")

    def _consequence(self, go_on: int, trainings: int, room: int) -> str:
        if go_on == trainings == 1:
            return f"training resumes with {room} from the last checkpoint, on the same global batches"
        if go_on == trainings:
            return "all trainings resume from their last checkpoints, one with fewer workers on the same global batches"
        if go_on:
            return f"{go_on} of {trainings} trainings resume from their last checkpoints, and the others after them"
        waits = "training waits for another node"
        if self.cell.resources.allow_fewer_workers or not room:
            return waits
        return f"{waits}. With resources.allow_fewer_workers: true the same command resumes with fewer"


def alone(job: Job, on_epoch: Callable[[loop.Epoch], None]) -> loop.Position:
    """Trains a job in this process."""
    torch.set_num_threads(job.cell.resources.cpus_per_worker)
    group = Group(device=torch.device("cuda" if job.cell.resources.gpu else "cpu"))
    try:
        return loop.run(job, group, on_epoch, should_stop=_told_to_stop(job))
    except Exception as error:  # raised again: a lack of memory, of whatever type, gets advice on the way
        why = memory.explained(error, job.cell, f"seed {job.seed}")
        if why is None:
            raise
        raise why from error


def history(job: Job) -> list[loop.Epoch]:
    """The epochs that the workers have reported so far."""
    path = job.state / HISTORY

    def read() -> list[loop.Epoch]:
        return storage.read_json(path, "python -m pipeline.train") if path.exists() else []

    return storage.patiently(read, job.home)


def pause(state: Anywhere) -> float:
    """Seconds to wait between two looks at a folder."""
    return 0.0 if isinstance(state, Path) else 5.0


def raise_why_stopped(state: Anywhere) -> None:
    """Raises the error that made a worker stop, if there is one."""
    path = state / STOPPED
    if path.exists():
        said = storage.read_json(path, "python -m pipeline.train")
        raise KINDS[said["kind"]](said["error"])


def note(job: Job, error: StudyError) -> None:
    """Writes down why a training cannot continue; workers that Ray restarts exit at once."""
    kind = next(name for name, kind in KINDS.items() if isinstance(error, kind))
    why = {"error": str(error), "kind": kind}
    storage.patiently(lambda: storage.write_json(job.state / STOPPED, why), job.home)


def figures(epoch: loop.Epoch) -> dict[str, float]:
    """The metrics of an epoch that MLflow records, those of each worker as `worker 0/images_per_second`."""
    of_all = {
        f"worker {rank}/{name}": value
        for rank, one in enumerate(epoch.get("workers", []))
        for name, value in one.items()
    }
    numbers = {name: value for name, value in epoch.items() if name not in ("epoch", "workers")}
    return {name: float(value) for name, value in {**numbers, **of_all}.items() if value is not None}


def _work(config: dict[str, Any]) -> None:
    from ray.train.torch import get_device

    job: Job = config["job"]
    if (job.state / STOPPED).exists():
        return
    torch.set_num_threads(job.cell.resources.cpus_per_worker)
    device = get_device()
    assert isinstance(device, torch.device)
    group = Group.joined(device)
    try:
        loop.run(job, group, _Report(job, group), should_stop=_told_to_stop(job))
    except Diverged as error:
        note(job, error)  # all workers see it at the same step: they end together, and Ray starts none of them again
    except Exception as error:  # raised again: the driver reads why in the note
        why = error if isinstance(error, StudyError) else memory.explained(error, job.cell, f"seed {job.seed}")
        if why is not None:
            note(job, why)
        raise


def _told_to_stop(job: Job) -> Callable[[], bool]:
    """The check before each step. It looks at remote storage only now and then, so that steps do not wait for it."""
    due, every, word = 0.0, pause(job.state), job.state / STOP

    def told() -> bool:
        nonlocal due
        if time.monotonic() < due:
            return False
        due = time.monotonic() + every
        return word.exists()

    return told


class _Report:
    """Reports a worker's progress to Ray and to processes that watch the job's folder."""

    def __init__(self, job: Job, group: Group) -> None:
        self.path, self.home, self.first = job.state / HISTORY, job.home, group.first
        self.history: list[loop.Epoch] = []

    def __call__(self, epoch: loop.Epoch) -> None:
        import ray.train

        self.history.append(epoch)
        if self.first:
            storage.patiently(lambda: storage.write_json(self.path, self.history), self.home)
        ray.train.report(epoch)
