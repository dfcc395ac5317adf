"""Readers of the files that `prepare` writes: arrays, and summary.json, which describes the data set or says why it
is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline import files
from pipeline.errors import StudyError


def read_summary(folder: Path, *kinds: str) -> dict[str, Any]:
    """The summary of a data set; an error if the data set is missing or of none of these kinds."""
    summary = _summary(folder)
    if "missing" in summary:
        raise StudyError(f"{folder}: the data set is missing: {summary['missing']}")
    if summary["kind"] not in kinds:
        raise StudyError(f"{folder}: the data set is of the kind {summary['kind']}, expected {' or '.join(kinds)}")
    return summary


def read_array(path: Path, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """Reads an array of numbers. Arrays of objects are refused, because unpickling them could run code."""
    try:
        array: np.ndarray = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise unreadable(path, error) from error
    return array


def unreadable(path: Path, error: Exception) -> StudyError:
    """The error for a file of a data set that is missing or damaged."""
    return StudyError(
        f"{path}: cannot be read ({error}); write it again with `python -m pipeline.prepare {path.parent.name}`"
    )


def _summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = files.read_json(folder / "summary.json", f"python -m pipeline.prepare {folder.name}")
    return summary
