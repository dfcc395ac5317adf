"""Sends a journal to MLflow: in the background while a stage works, at its end, and later any records left over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from pipeline import console
from pipeline.errors import StudyError
from pipeline.masking import masked
from pipeline.tracking import delivery, identity, store
from pipeline.tracking.spool import Entry, Spool

if TYPE_CHECKING:
    from mlflow import MlflowClient

BATCH = 1000  # metrics in one request
_PAUSE = 2.0  # seconds to collect metrics before sending them
_LONGEST_PAUSE = 60.0  # seconds between attempts while the server is unreachable
_LOCK_WAIT = 5.0
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")  # MLflow's names for 401 and 403


class Courier:
    """Sends one journal, in order. It is no thread: the caller decides when to send, and sees any error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = Spool(folder)
        self.run_id: str | None = None
        self._in_doubt = True
        self._forget()

    def deliver(self) -> None:
        """Sends all records. Raises whatever MLflow raises, and then marks no further records as sent."""
        self.spool.sync()
        with self.spool.lock(_LOCK_WAIT):
            settled = identity.settle(self.folder, check=self.run_id is None)
            assert settled.id is not None
            if settled.id != self.run_id:
                self._forget()
                self.run_id = settled.id
            client = store.client(settled.uri)
            start = self.spool.sent(settled.id)
            self._see(self.spool.read(self._position, start))
            for group in _groups(self.spool.read(start)):
                self._deliver(client, settled.id, group)
                self._see(group)
                self.spool.mark(settled.id, group[-1].end)

    def _deliver(self, client: MlflowClient, run_id: str, group: list[Entry]) -> None:
        records = [entry.record for entry in group]
        if records[0]["kind"] != "metric":
            delivery.other(client, run_id, records[0])
            return
        fresh = {(r["key"], r["step"]): r for r in reversed(records) if (r["key"], r["step"]) not in self._seen}
        doubtful, self._in_doubt = self._in_doubt, True  # in doubt until the answer arrives
        found = delivery.metrics(client, run_id, list(reversed(fresh.values())), doubtful)
        self._in_doubt = doubtful and found

    def _see(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.record["kind"] == "metric":
                self._seen.add((entry.record["key"], entry.record["step"]))
        if entries:
            self._position = entries[-1].end

    def _forget(self) -> None:
        self._seen: set[tuple[str, int]] = set()
        self._position = 0
        # A crash can fall between sending and marking, so we ask the store what it has until a batch proves new.
        self._in_doubt = True


class Sender:
    """A courier in its own thread, so that no stage waits for a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._courier = Courier(folder)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._round = threading.Condition()
        self._thread: threading.Thread | None = None
        self._hurry = False
        self.trouble: str | None = None

    def notify(self) -> None:
        """Starts the thread, if need be, after a record was appended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"mlflow {self.folder.name}", daemon=True)
            self._thread.start()

    def flush(self, wait: float, insist: bool = True) -> bool:
        """Waits at most ``wait`` seconds until MLflow has received the journal; returns whether it has.

        Without ``insist``, the wait also ends as soon as sending fails.
        """
        if self._thread is None:
            return True
        deadline = time.monotonic() + wait
        self._hurry = True
        self._wake.set()
        with self._round:
            while self._thread.is_alive() and identity.pending(self.folder):
                left = deadline - time.monotonic()
                if left <= 0 or (self.trouble is not None and not insist):
                    break
                self._round.wait(min(left, _PAUSE))
        self._hurry = False
        return not identity.pending(self.folder)

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=_PAUSE)

    def _work(self) -> None:
        pause = _PAUSE
        while not self._stop.is_set():
            if identity.pending(self.folder):
                pause = _PAUSE if self._attempt() else min(2 * pause, _LONGEST_PAUSE)
                with self._round:
                    self._round.notify_all()
            self._wake.wait(min(pause, _PAUSE) if self._hurry else pause)
            if not self._stop.is_set():
                self._wake.clear()

    def _attempt(self) -> bool:
        try:
            self._courier.deliver()
        except Timeout:
            return True  # another process is sending
        except Exception as error:  # the journal is safe, and a failing server must not disturb the training
            if self.trouble is None:
                console.say(f"MLflow does not accept our metrics; they are kept in {self.folder} ({brief(error)})")
            self.trouble = brief(error)
            return False
        if self.trouble is not None:
            console.say("MLflow is back; the kept metrics have been sent")
            self.trouble = None
        return True


def leftovers(root: Path) -> Iterator[Path]:
    """State folders below ``root`` with unsent records."""
    for path in sorted(root.rglob(identity.FILE)):
        if identity.pending(path.parent):
            yield path.parent


def send(root: Path) -> list[str]:
    """Sends all records left over; returns one line for each folder that could not be sent, with the reason."""
    complaints = []
    for folder in leftovers(root):
        try:
            Courier(folder).deliver()
        except Timeout:
            continue  # a running stage sends it
        except Exception as error:  # a failure in one folder must not hold up the others
            complaints.append(f"{folder}: {brief(error)}")
    return complaints


def brief(error: BaseException) -> str:
    """One line about an error, without passwords. A network error is at the root of a long chain of causes."""
    if getattr(error, "error_code", None) in _REFUSED:
        return "the server refuses access: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to a known user"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConnectionError | TimeoutError):
        cause = cause.__cause__ or cause.__context__
    lines = masked(str(cause or error)).splitlines() or [type(error).__name__]
    return lines[0][:300]


def patience() -> float:
    """How many seconds the end of a stage waits for the server."""
    text = os.environ.get("MNVI_TRACKING_WAIT", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise StudyError(f"MNVI_TRACKING_WAIT={text!r}: expected seconds, 0 or more")
    return seconds


def _groups(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Groups of records to send together: consecutive metrics share a group, any other record has its own."""
    group: list[Entry] = []
    for entry in entries:
        metric = entry.record["kind"] == "metric"
        if group and (not metric or len(group) == BATCH):
            yield group
            group = []
        if metric:
            group.append(entry)
        else:
            yield [entry]
    if group:
        yield group
