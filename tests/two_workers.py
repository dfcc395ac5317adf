"""Work that two processes do together, joined as the workers of a training are."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

# A worker is forked from a process that has imported these, which takes longer than what most tests do.
PRELOADED = ["torch._dynamo", "torch.nn.parallel", "mnvi", "pipeline.images.loop"]


def together(work: Callable[..., None], meeting: Path, *arguments: Any) -> None:
    """Calls ``work(rank, *arguments)`` in two processes at a time.

    Args:
        work: a function of a module, so that the other processes find it.
        meeting: the file, not there yet, by which they find each other.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    start_processes(_join, (work, meeting, dict(os.environ), arguments), nprocs=2, start_method="forkserver")


def _join(
    rank: int, work: Callable[..., None], meeting: Path, environment: dict[str, str], arguments: tuple[Any, ...]
) -> None:
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", **environment})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        work(rank, *arguments)
    finally:
        dist.destroy_process_group()
