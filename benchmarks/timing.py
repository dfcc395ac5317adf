"""Measures time and memory, and writes the figures."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.subjects import Subject

_WARM_UP = 2
_FEWEST = 3  # rounds


def interleaved(
    steps: list[Callable[[], None]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median milliseconds of each step; every round runs each step once."""
    for step in steps:
        for _ in range(_WARM_UP):
            step()
    return [statistics.median(taken) for taken in in_turn(steps, rounds, clock=clock)]


def in_turn(
    steps: list[Callable[[], None]],
    rounds: int,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Milliseconds of each step in each round; after three rounds no further one starts once the seconds are over."""
    times: list[list[float]] = [[] for _ in steps]
    begin = clock()
    while len(times[0]) < rounds and (len(times[0]) < _FEWEST or clock() - begin < seconds):
        for step, taken in zip(steps, times, strict=True):
            start = clock()
            step()
            taken.append((clock() - start) * 1e3)
    return times


class Others:
    """The share of the machine's cores that other processes use; None where the system does not tell (not Linux)."""

    def __init__(self) -> None:
        self._start = self._busy(), self._own(), time.perf_counter()

    def share(self) -> float | None:
        (busy, own, start), now = self._start, self._busy()
        if busy is None or now is None:
            return None
        elapsed = (time.perf_counter() - start) * (os.cpu_count() or 1)
        return max(0.0, (now - busy - (self._own() - own)) / elapsed)

    @staticmethod
    def _busy() -> float | None:
        """Seconds that all cores together have worked: user, nice, system, interrupts, stolen."""
        try:
            ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        except OSError:
            return None
        return sum(ticks[index] for index in (0, 1, 2, 5, 6, 7)) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _own() -> float:
        return time.process_time()


def kept_for_backward(subject: Subject) -> int:
    """Bytes of distinct storages that autograd holds between forward and backward pass, without parameters."""
    own = {p.untyped_storage().data_ptr() for p in subject.net.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def unpack(tensor: Any) -> Any:
        return tensor

    subject.step()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = subject.forward()
    loss.backward()
    return sum(kept.values())


def conditions(batch: int, rounds: int) -> dict[str, Any]:
    """What figures depend on besides the code: machine, torch, batch size, number of rounds."""
    return {
        "machine": {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()},
        "torch": torch.__version__,
        "batch": batch,
        "rounds": rounds,
    }


def write(path: Path, document: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(temporary, path)
