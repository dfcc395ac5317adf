"""What training goes on from: the last two states of a run, each written whole.

A state is a dictionary of tensors and plain values. One that was made under other settings or other data (another
fingerprint) is not gone on from; one that cannot be read makes way for the one before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.console import say
from pipeline.errors import StudyError

KEPT = 2


class Checkpoints:
    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint

    def save(self, state: dict[str, Any], epoch: int, step: int) -> Path:
        path = self.folder / f"checkpoint-{epoch:05d}-{step:07d}.pt"
        files.write_tensors(path, {"fingerprint": self.fingerprint, **state})
        for old in self.paths()[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def paths(self) -> list[Path]:
        """The newest first."""
        return sorted(self.folder.glob("checkpoint-*.pt"), reverse=True)

    def newest(self) -> Path | None:
        """The last checkpoint that can be gone on from; what cannot be is deleted."""
        for path in self.paths():
            try:
                state = self.read(path)
            except StudyError as error:
                say(
                    f"{error}\n{path.name} is left out: training goes on from the checkpoint before it, if there is one"
                )
                path.unlink()
                continue
            if state["fingerprint"] != self.fingerprint:
                say(f"{self.folder}: made with other settings or data, so training starts anew")
                files.remove(self.folder)
                return None
            return path
        return None

    def read(self, path: Path) -> dict[str, Any]:
        state = files.read_tensors(path, "python -m pipeline.train")
        if not isinstance(state, dict) or "fingerprint" not in state:
            raise StudyError(f"{path}: not a checkpoint")
        return state

    def load(self) -> dict[str, Any] | None:
        path = self.newest()
        return None if path is None else self.read(path)
