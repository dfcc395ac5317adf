"""Recognises that a worker ran out of memory. A second attempt would fail in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from pipeline.errors import OutOfMemory
from pipeline.params import Cell

# Words of torch's CPU allocator and of Ray's memory monitor. If the kernel kills a process for lack of memory, nothing
# shows the reason, and Ray restarts it.
_OF_THE_NODE = re.compile(r"can't allocate memory|not enough memory|running low on memory|OutOfMemoryError")


def explained(error: BaseException, cell: Cell, who: str) -> OutOfMemory | None:
    """What to do about an error that comes from a lack of memory; None if it comes from something else.

    Args:
        who: whose error it is, e.g. `seed 0`.
    """
    for one in _chain(error):
        if isinstance(one, torch.OutOfMemoryError) or "CUDA out of memory" in str(one):
            return OutOfMemory(
                f"{cell.name}, {who}: a GPU ran out of memory ({_first_line(one)}). Train the same batch in "
                f"parts (resources.accumulate: {2 * cell.resources.accumulate}), on more workers (resources.workers), "
                "or with resources.precision: bfloat16"
            )
        if isinstance(one, MemoryError) or _OF_THE_NODE.search(f"{type(one).__name__}: {one}"):
            return OutOfMemory(
                f"{cell.name}, {who}: a node ran out of memory ({_line_about(one)}). Use nodes with more memory, or "
                "let fewer workers share one: raise resources.cpus_per_worker, or lower `ray start --num-cpus`"
            )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _line_about(error: BaseException) -> str:
    """The line that speaks of memory, up to the end of its sentence: Ray's report has pages."""
    for line in str(error).splitlines():
        if words := _OF_THE_NODE.search(line):
            return line[: words.end()].strip() + line[words.end() :].partition(". ")[0].rstrip()
    return _first_line(error)
