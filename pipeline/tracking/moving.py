"""What MLflow has not got of runs, made ready to be sent by another machine: from a job to whoever submitted it."""

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
    """Copies what has not arrived of runs below ``state``; says of which.

    Args:
        target: where to, here.
        name: where it will be over there. As that folder and the stage's outputs, artifacts are named as they are seen
            from the working folder.
    """
    packed = list(leftovers(state))
    for folder in packed:
        inside = folder.relative_to(state)
        known, spool = identity.read(folder), Spool(folder)
        records = [entry.record for entry in spool.read(spool.sent(known.id) if known.id else 0)]
        identity.write(target / inside, known)
        Spool(target / inside).append([_renamed(record, folder, target / inside, name / inside) for record in records])
        if known.parent is not None:  # who has to be known before a child can be made
            above = Path(os.path.normpath(folder / known.parent))
            identity.write(target / above.relative_to(state), identity.read(above))
    return packed


def forget(packed: Sequence[Path]) -> None:
    """Nobody goes on with these runs here."""
    for folder in packed:
        Spool(folder).clear()
        (folder / identity.FILE).unlink()


def _renamed(record: dict[str, Any], folder: Path, target: Path, name: Path) -> dict[str, Any]:
    """What is no longer there keeps its name, by which the one who sends it complains."""
    if record["kind"] == "artifact" and Path(record["path"]).is_relative_to(Path.cwd()):
        return {**record, "path": os.path.relpath(record["path"])}
    if record["kind"] == "model":
        told = Path(record["folder"])
        # An earlier attempt told it, whose folder was another, and this one has been brought its state.
        for saved in (told, folder / told.name, folder.parent / told.name):
            if saved.is_dir():
                shutil.copytree(saved, target / told.name, dirs_exist_ok=True)
                return {**record, "folder": str(name / told.name)}
    return record
