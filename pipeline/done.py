"""Whether a stage has something to do: a note of what it read and wrote when it last finished.

Nothing here imports torch, Ray or MLflow: a stage that has nothing to do says so within a second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.console import say


@dataclass(frozen=True)
class Account:
    """What a stage depends on and what it makes.

    Files that it reads count by name, size and modification time, since data may be hundreds of gigabytes. Files that
    it makes count by name and size alone, since DVC changes their modification time when it moves them into its cache.

    Args:
        stage: the stage and what it works on, for messages: `train boston-mnvi`.
        note: the file that keeps the digests. It is in a folder that DVC does not delete.
        depends_on: settings and code, as JSON knows them.
        reads: files and folders that the stage reads.
        makes: files and folders that the stage writes.
    """

    stage: str
    note: Path
    depends_on: Any
    reads: Sequence[Path]
    makes: Sequence[Path]

    def holds(self) -> bool:
        """Whether the stage made its present outputs from its present inputs, settings and code."""
        if not self.note.exists() or not all(path.exists() for path in self.makes):
            return False
        known: dict[str, str] = files.read_json(self.note, f"python -m pipeline.{self.stage}")
        return known == self._digests()

    def is_settled(self) -> bool:
        """Whether the account holds. Says so if it does."""
        if not self.holds():
            return False
        made = ", ".join(str(path) for path in self.makes)
        state = (
            "is up to date; delete it to make it again" if len(self.makes) == 1 else "are up to date; delete one to run"
        )
        say(f"{self.stage}: nothing to do, {made} {state}")
        return True

    def settle(self) -> None:
        """Notes that the stage has finished."""
        files.write_json(self.note, self._digests())

    def _digests(self) -> dict[str, str]:
        read = [(str(path), size, time) for path, size, time in _files(self.reads)]
        made = [(str(path), size) for path, size, _ in _files(self.makes)]
        return {"depends_on": _digest([self.depends_on, read]), "made": _digest(made)}


def _files(paths: Sequence[Path]) -> list[tuple[Path, int, int]]:
    below = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    statuses = {file: file.stat() for file in below if file.is_file()}
    return [(file, status.st_size, status.st_mtime_ns) for file, status in statuses.items()]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
