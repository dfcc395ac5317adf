"""Records for MLflow, kept on disk first: a journal that only grows, and how much of it MLflow has received."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.errors import StudyError
from pipeline.files import read_json, write_json

JOURNAL = "metrics.jsonl"
_CURSOR = "mlflow-sent.json"
_LOCK = "mlflow-send.lock"


@dataclass(frozen=True)
class Entry:
    """A record of the journal, and the position of its end in the file."""

    record: dict[str, Any]
    end: int


class Spool:
    """The journal of one run.

    Appending needs no lock: it is one write of whole lines in append mode. Sending needs :meth:`lock`, so that a driver
    and its worker can both have the same run open.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / JOURNAL

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                data = b"\n" + lines if torn else lines
                if os.write(descriptor, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StudyError(
                f"{self.path}: cannot be written ({error.strerror}); free some space or make its folder writable, "
                "then run the same command again"
            ) from error

    def sync(self) -> None:
        """Makes appended lines survive a power failure; they survive the end of the process without this."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())

    def read(self, start: int, stop: int | None = None) -> list[Entry]:
        """Whole records between two positions; skips a line that a crash cut off."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(start)
            data = file.read() if stop is None else file.read(stop - start)
        entries, end = [], start
        for line in data.splitlines(keepends=True):
            end += len(line)
            if line.endswith(b"\n") and line.strip():
                try:
                    entries.append(Entry(json.loads(line), end))
                except json.JSONDecodeError:
                    continue
        return entries

    def sent(self, run_id: str) -> int:
        """The position up to which this run has received the journal; 0 for any other run."""
        path = self.folder / _CURSOR
        cursor = read_json(path, "a stage") if path.exists() else {}
        return int(cursor["offset"]) if cursor.get("run") == run_id else 0

    def mark(self, run_id: str, offset: int) -> None:
        write_json(self.folder / _CURSOR, {"run": run_id, "offset": offset})

    def lock(self, timeout: float) -> FileLock:
        return FileLock(self.folder / _LOCK, timeout=timeout)

    def move(self, folder: Path) -> None:
        """Moves the journal, and the record of how much was sent, to another folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (JOURNAL, _CURSOR):
            if (self.folder / name).exists():
                os.replace(self.folder / name, folder / name)

    def clear(self) -> None:
        for name in (JOURNAL, _CURSOR):
            (self.folder / name).unlink(missing_ok=True)
