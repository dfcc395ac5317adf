"""Ray Train around the loop: as many workers as were asked for, started again where they die."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from pipeline import files, tracking
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.images import loop
from pipeline.images.group import Group
from pipeline.images.job import Job
from pipeline.params import Cell

RESTARTS = 3
HISTORY = "history.json"  # the epochs so far, for those who watch
STOP = "stop"  # a file of this name ends a training in order
STOPPED = "stopped.json"  # why a training cannot go on; workers that are started again leave at once


def fit(job: Job, workers: int, *, tracked: bool = True, callbacks: Callable[[], list[Any]] = list) -> None:
    """Trains a job on workers of its own; blocks until they end. What counts is in the job's folder.

    Args:
        tracked: rank 0 adds its figures to the run that was begun in the job's folder.
        callbacks: of Ray Train, made where they are used.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    files.remove(job.state / STOPPED)
    rays_own = job.state / "ray"
    files.remove(rays_own)  # Ray would go on from what it kept; ours is the state that is whole after a kill
    trainer = TorchTrainer(
        _work,
        train_loop_config={"job": job, "tracked": tracked},
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=job.cell.resources.gpu, resources_per_worker=per_worker(job.cell)
        ),
        run_config=RunConfig(
            name=f"{job.cell.name}-{job.state.name}",
            storage_path=str(rays_own),
            failure_config=FailureConfig(max_failures=RESTARTS),
            callbacks=callbacks(),
        ),
    )
    trainer.fit()


def per_worker(cell: Cell) -> dict[str, float]:
    resources = {"CPU": float(cell.resources.cpus_per_worker)}
    return {**resources, "GPU": 1.0} if cell.resources.gpu else resources


def affordable(cell: Cell) -> tuple[int, int]:
    """How many workers a training gets in the connected cluster, and how many trainings fit at a time."""
    import ray

    there, asked = ray.cluster_resources(), cell.resources.workers
    needs = per_worker(cell)
    most = min(math.floor(there.get(kind, 0.0) / amount) for kind, amount in needs.items())
    if most >= asked:
        return asked, most // asked
    has = ", ".join(f"{there.get(kind, 0.0):g} {kind}" for kind in needs)
    wanted = ", ".join(f"{asked * amount:g} {kind}" for kind, amount in needs.items())
    if most and cell.resources.allow_fewer_workers:
        say(f"resources.workers: {asked} workers need {wanted}, the cluster has {has}; going on with {most}")
        return most, 1
    raise StudyError(
        f"resources.workers: {asked} workers need {wanted}, but the cluster has {has}; lower resources.workers or "
        "resources.cpus_per_worker, set resources.gpu to false, or set resources.allow_fewer_workers to true to train "
        "the same global batches on fewer"
    )


def alone(job: Job, on_epoch: Callable[[loop.Epoch], None]) -> loop.Position:
    """Trains a job in this process."""
    torch.set_num_threads(job.cell.resources.cpus_per_worker)
    group = Group(device=torch.device("cuda" if job.cell.resources.gpu else "cpu"))
    return loop.run(job, group, on_epoch, should_stop=(job.state / STOP).exists)


def why_stopped(state: Path) -> str | None:
    """What the user can mend about a training that cannot go on."""
    path = state / STOPPED
    return str(files.read_json(path, "python -m pipeline.train")["error"]) if path.exists() else None


def figures(epoch: loop.Epoch) -> dict[str, float]:
    """What is tracked of an epoch."""
    return {name: float(value) for name, value in epoch.items() if name != "epoch" and value is not None}


def _work(config: dict[str, Any]) -> None:
    from ray.train.torch import get_device

    job: Job = config["job"]
    if (job.state / STOPPED).exists():
        return
    torch.set_num_threads(job.cell.resources.cpus_per_worker)
    device = get_device()
    assert isinstance(device, torch.device)
    group = Group.joined(device)
    with tracking.resume(job.state) if config["tracked"] and group.first else nullcontext() as run:
        try:
            loop.run(job, group, _Report(job, group, run), should_stop=(job.state / STOP).exists)
        except StudyError as error:
            files.write_json(job.state / STOPPED, {"error": str(error)})
            raise


class _Report:
    """Tells Ray, the tracked run and those who watch the job's folder how far a worker is."""

    def __init__(self, job: Job, group: Group, run: tracking.Run | None) -> None:
        self.path, self.first, self.run = job.state / HISTORY, group.first, run
        self.history: list[loop.Epoch] = []

    def __call__(self, epoch: loop.Epoch) -> None:
        import ray.train

        self.history.append(epoch)
        if self.first:
            files.write_json(self.path, self.history)
        if self.run is not None:
            self.run.metrics(figures(epoch), step=epoch["epoch"])
        ray.train.report(epoch)
