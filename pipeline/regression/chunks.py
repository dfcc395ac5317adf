"""Trains networks in chunks, one Ray task each. A finished chunk is saved to a file and never trained again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch

from pipeline import cluster, files, state
from pipeline.console import progress
from pipeline.params import Cell
from pipeline.regression import cell_networks, compiling
from pipeline.regression.cell_networks import Replica
from pipeline.regression.folds import Fold, digest

SIZE = 100  # networks per chunk: each chunk records its step, which takes seconds; an interruption loses a chunk


@dataclass(frozen=True)
class Chunks:
    """The fixed plan of a cell's training: which networks step together, and whether their step is compiled."""

    cell: Cell
    folds: list[Fold]
    parts: list[list[Replica]]
    compiled: bool
    folder: Path

    @classmethod
    def of(cls, cell: Cell, folds: list[Fold], plan: Sequence[Replica]) -> Chunks:
        parts = [list(plan[start : start + SIZE]) for start in range(0, len(plan), SIZE)]
        compiled = compiling.wanted(cell, folds, plan)
        made_for = {**cell.made_for("train"), "data": digest(folds), "compiled": compiled}
        folder = state.progress(cell.state("train"), cell, "train", made_for)
        assert isinstance(folder, Path)  # the driver keeps the chunks
        return cls(cell, folds, parts, compiled, folder)

    @property
    def depends_on(self) -> list[str | bool]:
        return [self.cell.fingerprint("train"), digest(self.folds), self.compiled]

    def finished(self) -> dict[int, dict[str, Any]]:
        """The results of chunks that earlier runs finished."""
        made_by = f"python -m pipeline.train {self.cell.name}"
        paths = {index: self.path(index) for index in range(len(self.parts))}
        return {index: files.read_tensors(path, made_by) for index, path in paths.items() if path.exists()}

    def save(self, index: int, result: dict[str, Any]) -> None:
        files.write_tensors(self.path(index), result)

    def path(self, index: int) -> Path:
        """Names the file by the networks of the plan that it holds, because more runs change the last chunk."""
        first = SIZE * index
        return self.folder / f"networks-{first:05}-{first + len(self.parts[index]) - 1:05}.pt"


def train(chunks: Chunks, report: Callable[[int, dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Trains the unfinished chunks and returns all results in the order of the plan.

    Args:
        report: called with the index and the result of each chunk that ends.
    """
    results = chunks.finished()
    epochs = chunks.cell.experiment.epochs
    total, done = (epochs * sum(len(chunks.parts[i]) for i in some) for some in (range(len(chunks.parts)), results))
    waiting = deque(index for index in range(len(chunks.parts)) if index not in results)
    if not waiting:
        return [results[index] for index in sorted(results)]
    with cluster.connected(), progress(f"train {chunks.cell.name}", total, "network epochs", done) as bar:
        board: Any = ray.remote(num_cpus=0, scheduling_strategy=cluster.this_node())(_Board).remote()
        cell, folds = ray.put(chunks.cell), ray.put(chunks.folds)
        running: dict[ray.ObjectRef[Any], int] = {}
        most = cluster.cpus()
        while waiting or running:
            while waiting and len(running) < most:
                index = waiting.popleft()
                running[_train_chunk.remote(cell, folds, chunks.parts[index], chunks.compiled, board)] = index
            ended, _ = ray.wait(list(running), timeout=0.5)
            bar.advance(done + ray.get(board.steps.remote()) - bar.done)
            for task in ended:
                index = running.pop(task)
                results[index] = ray.get(task)
                chunks.save(index, results[index])
                report(index, results[index])
        bar.advance(total - bar.done)  # the last tasks' messages may not have reached the board yet
    return [results[index] for index in sorted(results)]


class _Board:
    """Counts the steps that tasks report."""

    def __init__(self) -> None:
        self._steps = 0

    def advance(self, steps: int) -> None:
        self._steps += steps

    def steps(self) -> int:
        return self._steps


@ray.remote(num_cpus=1)
def _train_chunk(cell: Cell, folds: list[Fold], part: list[Replica], compiled: bool, board: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    began, cpu = time.time(), time.process_time()
    trained = cell_networks.train(cell, part, folds, lambda some, *_: board.advance.remote(len(some)), compiled)
    return {
        "state": trained.state,
        "losses": trained.losses,
        "failures": trained.failures,
        "began": began,
        "ended": time.time(),
        "cpu_seconds": time.process_time() - cpu,
    }
