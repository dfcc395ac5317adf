"""Checkpoints of training: the last two states of a run, each written atomically.

Storage may be gone for a minute or two: whoever writes or reads a checkpoint then waits.

A state is a dictionary of tensors and plain values. If the newest cannot be read, training resumes from the one before
it. The unreadable file is kept under another name, because the fault may lie with the disk.
"""

from __future__ import annotations

from typing import Any

from pipeline import storage
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.storage import Anywhere

KEPT = 2


class Checkpoints:
    """The checkpoints in a folder.

    Args:
        home: a folder around it; if it is not there, storage is gone.
    """

    def __init__(self, folder: Anywhere, home: Anywhere | None = None) -> None:
        self.folder, self.home = folder, home

    def save(self, state: dict[str, Any], epoch: int, step: int) -> Anywhere:
        path = self.folder / f"checkpoint-{epoch:05d}-{step:07d}.pt"
        storage.patiently(lambda: storage.write_tensors(path, state), self.home)
        for old in self.paths()[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def paths(self) -> list[Anywhere]:
        """The checkpoints, newest first."""
        return storage.found(self.folder, "checkpoint-*.pt")[::-1]

    def newest(self) -> Anywhere | None:
        """The last checkpoint that can be read."""
        return storage.patiently(self._newest, self.home)

    def _newest(self) -> Anywhere | None:
        self._remove_halves()
        for path in self.paths():
            try:
                self.read(path)
            except storage.Gone:
                raise
            except StudyError as error:
                kept = f"unreadable-{path.name}"
                say(f"{error}\nIt is now {kept}; training resumes from the checkpoint before it, if there is one")
                storage.move(path, self.folder / kept)
                continue
            return path
        return None

    def _remove_halves(self) -> None:
        """Removes half-written files. A folder has one writer at a time, the caller, so their writers are gone."""
        for left in storage.found(self.folder, ".checkpoint-*.tmp"):
            storage.remove(left)

    def read(self, path: Anywhere) -> dict[str, Any]:
        return storage.patiently(lambda: _read(path), self.home)

    def load(self) -> dict[str, Any] | None:
        path = self.newest()
        return None if path is None else self.read(path)


def _read(path: Anywhere) -> dict[str, Any]:
    state = storage.read_tensors(path, "python -m pipeline.train")
    if not isinstance(state, dict):
        raise StudyError(f"{path}: not a checkpoint")
    return state
