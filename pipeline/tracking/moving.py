"""Packs a job's records that MLflow has not received, so that the machine that submitted the job can send them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.tracking import identity
from pipeline.tracking.sender import leftovers
from pipeline.tracking.spool import Spool


def pack(state: Path, target: Path, name: Path) -> list[Path]:
    """Copies unsent records of runs below ``state``; returns the folders of these runs.

    Args:
        target: the folder to copy to, on this machine.
        name: the same folder's path on the other machine. Paths of artifacts, like this path and the stage's outputs,
            are relative to the working folder.
    """
    packed = list(leftovers(state))
    for folder in packed:
        inside = folder.relative_to(state)
        known, spool = identity.read(folder), Spool(folder)
        records = [entry.record for entry in spool.read(spool.sent(known.id) if known.id else 0)]
        identity.write(target / inside, known)
        Spool(target / inside).append([_renamed(record, folder, target / inside, name / inside) for record in records])
        if known.parent is not None:  # creating a child needs the parent's identity
            above = Path(os.path.normpath(folder / known.parent))
            identity.write(target / above.relative_to(state), identity.read(above))
    return packed


def forget(packed: Sequence[Path]) -> None:
    """Clears the folders of these runs, which do not continue here."""
    for folder in packed:
        Spool(folder).clear()
        (folder / identity.FILE).unlink()


def _renamed(record: dict[str, Any], folder: Path, target: Path, name: Path) -> dict[str, Any]:
    """The record with its path on the other machine. A missing file keeps its path, for the sender's message."""
    if record["kind"] == "artifact" and Path(record["path"]).is_relative_to(Path.cwd()):
        return {**record, "path": os.path.relpath(record["path"])}
    if record["kind"] == "model":
        told = Path(record["folder"])
        # An earlier attempt in a different folder may have written the record; its state was copied here.
        for saved in (told, folder / told.name, folder.parent / told.name):
            if saved.is_dir():
                shutil.copytree(saved, target / told.name, dirs_exist_ok=True)
                return {**record, "folder": str(name / told.name)}
    return record
