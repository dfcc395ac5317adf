"""What `prepare` wrote of a data set: its arrays, and summary.json, which says what it is, or why it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline import files
from pipeline.errors import StudyError


def read_summary(folder: Path, *kinds: str) -> dict[str, Any]:
    """The summary of a data set of one of these kinds."""
    summary = _summary(folder)
    if "missing" in summary:
        raise StudyError(f"{folder}: the data set is missing: {summary['missing']}")
    if summary["kind"] not in kinds:
        raise StudyError(f"{folder}: is of the kind {summary['kind']}, expected {' or '.join(kinds)}")
    return summary


def read_array(path: Path, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """An array of numbers; one of objects is refused, as reading it would run what it says."""
    try:
        array: np.ndarray = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise _unreadable(path, error) from error
    return array


def read_pixels(path: Path, length: int) -> np.ndarray:
    """A file of at least so many bytes, memory-mapped."""
    try:
        pixels = np.memmap(path, np.uint8, mode="r")
        if len(pixels) < length:
            raise ValueError(f"it has {len(pixels)} bytes of {length}")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return pixels


def _unreadable(path: Path, error: Exception) -> StudyError:
    return StudyError(
        f"{path}: cannot be read ({error}); make it anew with `python -m pipeline.prepare {path.parent.name}`"
    )


def _summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = files.read_json(folder / "summary.json", f"python -m pipeline.prepare {folder.name}")
    return summary
