"""A stage inside a job: what it reads comes from storage, what it makes goes there.

What the driver keeps on its own disk to resume from is copied to storage while it works, so that the next attempt, on
whatever node, goes on from it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path, PurePosixPath

from pipeline import blobs, files, storage
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.params import Cell
from pipeline.params.cells import WORK
from pipeline.storage import Anywhere
from pipeline.submission.package import LOCK
from pipeline.tracking import moving, store
from pipeline.tracking.identity import JOB

INPUTS = "MNVI_INPUTS"  # what is read, as JSON: paths, and the digests under which storage has them
EVERY = 20.0  # seconds between two copies of the driver's state
NOT_COPIED = (".lock", ".tmp")


def is_inside() -> bool:
    return INPUTS in os.environ


@contextmanager
def entered() -> Iterator[None]:
    """Inside a job, the block works in a folder of its own that has what the stage reads; elsewhere, where it is."""
    if not is_inside():
        yield
        return
    root, package = storage.of("a submitted job"), Path.cwd()
    _check_versions(package / LOCK)
    _check_tracking()
    job = PurePosixPath(os.environ[JOB])
    folder = blobs.node_cache() / "jobs" / job
    files.remove(folder)  # of an earlier attempt that was killed
    folder.mkdir(parents=True)
    for file in package.iterdir():
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    for name, digest in json.loads(os.environ[INPUTS]).items():
        _lay_out(blobs.Contents(root, digest), folder / name)
    os.chdir(folder)
    try:
        with _copied(WORK, root / "drivers" / str(job.parent)):
            yield
    finally:
        os.chdir(package)
        files.remove(folder)


def deliver(cell: Cell, stage: str) -> None:
    """Inside a job, puts what the stage has made into storage, with what MLflow has not got: this folder is deleted."""
    if not is_inside():
        return
    root = storage.of("a submitted job")
    job, unsent = os.environ[JOB], Path("unsent")
    made = {str(path): path for path in outputs(cell, stage)}
    note = {"contents": blobs.publish(made, root).digest}
    if packed := moving.pack(WORK, unsent, tracked(job)):
        note["unsent"] = blobs.publish({".": unsent}, root).digest
    storage.write_json(finished(root, job), note)
    moving.forget(packed)  # or the cell's next job would send it, too


def outputs(cell: Cell, stage: str) -> list[Path]:
    """What DVC expects of the stage."""
    return [cell.model] if stage == "train" else [cell.tune / "best.yaml", cell.tune / "trials.json"]


def finished(root: Anywhere, job: str) -> Anywhere:
    """The file that says what a job has made."""
    return root / "outputs" / f"{job}.json"


def tracked(job: str) -> Path:
    """Where whoever submitted a job keeps what MLflow has not got of it, for the next stage to send."""
    return WORK / "jobs" / job


def _lay_out(contents: blobs.Contents, place: Path) -> None:
    """Folders were published as they are, files by their name."""
    source = contents.here()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(source / place.name if (source / place.name).is_file() else source)


def _check_versions(lock: Path) -> None:
    """That packages are those of the lock, as far as they are installed; a missing one says so when it is imported."""
    pinned = re.findall(r"^([\w.-]+)==([\w.!+-]+)", lock.read_text(), re.MULTILINE) if lock.exists() else []
    installed = {found.name.lower().replace("_", "-"): found.version for found in metadata.distributions()}
    wrong = []
    for name, version in pinned:
        there = installed.get(name.lower().replace("_", "-"), version)
        if there.split("+")[0] != version.split("+")[0]:  # what follows is the build: cpu, cu126
            wrong.append(f"{name} {there} instead of {version}")
    if wrong:
        raise StudyError(
            f"{LOCK}: the cluster has {', '.join(wrong)}; start it from the project's image, or set MNVI_PIP=1 where "
            "the job is submitted to have the locked versions installed for it"
        )


def _check_tracking() -> None:
    database = store.database_file(store.address())
    if database is not None and not database.exists():
        raise StudyError(
            f"MLFLOW_TRACKING_URI: {database} is not to be seen on the cluster; start `mlflow server` where this "
            "machine and the cluster reach it, and set MLFLOW_TRACKING_URI to its address"
        )


@contextmanager
def _copied(folder: Path, copy: Anywhere) -> Iterator[None]:
    """Begins with what the copy has, and keeps it up to date."""
    for name in storage.names(copy):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        storage.fetch(copy / str(name), folder / name)
    stop, copier = threading.Event(), _Copier(folder, copy)

    def work() -> None:
        while not stop.wait(EVERY):
            copier.copy()

    thread = threading.Thread(target=work, name="copies state to storage", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        copier.copy()


class _Copier:
    def __init__(self, folder: Path, copy: Anywhere) -> None:
        self.folder, self.target = folder, copy
        self.seen = self._look()

    def copy(self) -> None:
        """Brings what has changed; trouble is told and tried again next time."""
        try:
            now = self._look()
            for name, stamp in now.items():
                if self.seen.get(name) != stamp:
                    storage.put(self.folder / name, self.target / str(name))
                    self.seen[name] = stamp
            for name in self.seen.keys() - now.keys():
                (self.target / str(name)).unlink(missing_ok=True)
                del self.seen[name]
        except FileNotFoundError:
            return  # deleted meanwhile
        except (StudyError, OSError) as error:
            say(f"what this job could go on from is not in storage yet: {error}")

    def _look(self) -> dict[PurePosixPath, tuple[int, int]]:
        found = {}
        for name in storage.names(self.folder):
            if not name.name.endswith(NOT_COPIED) and "ray" not in name.parts[:-1]:
                status = (self.folder / name).stat()
                found[name] = status.st_mtime_ns, status.st_size
        return found
