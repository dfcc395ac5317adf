"""Errors for want of memory: they are told as such, and Ray does not train again in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray.exceptions
import torch
from image_study import make_cell, make_job

from pipeline.errors import OutOfMemory, StudyError
from pipeline.images import loop, memory, search, workers
from pipeline.images.hooks import NotInVain

OF_THE_GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
OF_RAY = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.\nMemory usage: …")
OF_A_GROUP = RuntimeError(
    "Training failed due to controller error:\n"
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.77.0.2) was 23.54GB\n"
    "OOM kill reason: …"
)
OF_TORCH = RuntimeError("[enforce fail at alloc_cpu.cpp:116] err == 0. DefaultCPUAllocator: can't allocate memory")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def wrapped(error: Exception) -> Exception:
    try:
        raise RuntimeError("a worker died") from error
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OF_THE_GPU, r"a GPU ran out of memory \(CUDA out of memory. Tried to allocate 2.00 GiB.\).*accumulate: 2\)"),
        (OF_RAY, r"a node ran out of memory \(Task was killed due to the node running low on memory.?\)"),
        (
            OF_A_GROUP,
            r"a node ran out of memory \(1 worker\(s\) were killed due to the node running low on memory\). Use nodes",
        ),
        (OF_TORCH, r"a node ran out of memory \(.*can't allocate memory\).*raise resources.cpus_per_worker"),
        (MemoryError(), r"a node ran out of memory \(MemoryError\)"),
        (wrapped(OF_THE_GPU), "a GPU ran out of memory"),
    ],
    ids=["GPU", "Ray's monitor", "Ray Train", "torch's allocator", "Python", "inside another"],
)
def test_a_lack_of_memory_is_explained(error: Exception, words: str) -> None:
    found = memory.explained(error, make_cell(), "seed 0")
    assert isinstance(found, OutOfMemory)
    with pytest.raises(OutOfMemory, match=f"lenet, seed 0: {words}"):
        raise found


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape mismatch"),
        ray.exceptions.WorkerCrashedError(),
        ValueError("(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_not(error: Exception) -> None:
    """Ray writes the last one about any process that was killed; those are restarted."""
    assert memory.explained(error, make_cell(), "seed 0") is None


def runs_out(*_: Any, **__: Any) -> None:
    raise OF_THE_GPU


def test_a_worker_that_ran_out_of_memory_does_not_train_when_it_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    job, calls = make_job(make_cell()), []
    monkeypatch.setattr(loop, "run", lambda *_, **__: calls.append(1) or runs_out())
    monkeypatch.setattr("ray.train.torch.get_device", lambda: torch.device("cpu"))
    with pytest.raises(torch.OutOfMemoryError):
        workers._work({"job": job})
    workers._work({"job": job})
    assert len(calls) == 1
    with pytest.raises(OutOfMemory, match="a GPU ran out of memory"):
        workers.raise_why_stopped(job.state)


def test_a_group_that_ray_ended_for_want_of_memory_finds_a_note() -> None:
    job = make_job(make_cell())
    watcher = NotInVain(job)
    watcher.after_exception(None, {0: ValueError("something else")})
    workers.raise_why_stopped(job.state)
    watcher.after_exception(None, {0: ValueError("collateral"), 1: wrapped(OF_RAY)})
    with pytest.raises(OutOfMemory, match="lenet, seed 0, worker 1: a node ran out of memory"):
        workers.raise_why_stopped(job.state)


def test_a_trial_without_memory_fails_and_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell(study={"search": ["lenet"]})
    point, folder = cell.grid_points()[0], cell.state("tune").absolute()
    folder.mkdir(parents=True)
    data = make_job(cell).data
    monkeypatch.setattr(loop, "run", runs_out)
    search.train_trial(point, cell, folder, data, num_workers=1)
    (record,) = search.ended(folder)
    assert record["objective"] is None and "a GPU ran out of memory" in record["status"]
    with pytest.raises(StudyError, match=r"every trial failed; one of them failed: lenet.*a GPU ran out of memory"):
        search.searching.choose([record], cell.grid_points())
