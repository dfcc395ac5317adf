"""Measures time and memory, and writes the figures."""

from __future__ import annotations

import json
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


def interleaved(steps: list[Callable[[], None]], rounds: int) -> list[float]:
    """Median milliseconds of each step; every round runs each step once."""
    times: list[list[float]] = [[] for _ in steps]
    for step in steps:
        for _ in range(_WARM_UP):
            step()
    for _ in range(rounds):
        for step, taken in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            taken.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(taken) for taken in times]


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
