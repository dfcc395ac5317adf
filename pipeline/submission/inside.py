"""A stage inside a job: it reads its inputs from storage and writes its outputs there.

While the driver works, its resumable state is copied from its own disk to storage, so that the next attempt can resume
from it on any node.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path, PurePosixPath

from pipeline import blobs, files, stage_files, storage
from pipeline.background import repeating
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.params import Cell
from pipeline.params.cells import WORK
from pipeline.storage import Anywhere
from pipeline.submission.package import LOCK
from pipeline.tracking import moving, store
from pipeline.tracking.identity import FILE, JOB

INPUTS = "MNVI_INPUTS"  # the stage's inputs as JSON: paths, and their digests in storage
EVERY = 20.0  # seconds between two copies of the driver's state
NOT_COPIED = (".lock", ".tmp")


def is_inside() -> bool:
    return INPUTS in os.environ


@contextmanager
def entered() -> Iterator[None]:
    """Inside a job, the block works in a new folder with the stage's inputs; elsewhere, in the current folder."""
    if not is_inside():
        yield
        return
    root, package = storage.of("a submitted job"), Path.cwd()
    _check_versions(package / LOCK)
    _check_tracking()
    job = PurePosixPath(os.environ[JOB])
    folder = blobs.node_cache() / "jobs" / job
    files.remove(folder)  # left by an earlier attempt that was killed
    folder.mkdir(parents=True)
    for file in package.iterdir():
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    for name, digest in json.loads(os.environ[INPUTS]).items():
        _lay_out(blobs.Contents(root, digest), folder / name)
    os.chdir(folder)
    _fetch_training_run(root, job)
    try:
        with _copied(WORK, root / "drivers" / str(job.parent)):
            yield
    finally:
        os.chdir(package)
        files.remove(folder)


def deliver(cell: Cell, stage: str) -> None:
    """Inside a job, uploads the stage's outputs and the records not yet sent to MLflow, as this folder is deleted."""
    if not is_inside():
        return
    root = storage.of("a submitted job")
    job, unsent = os.environ[JOB], Path("unsent")
    made = {str(path): path for path in stage_files.outputs(cell, stage)}
    note = {"contents": blobs.publish(made, root).digest}
    if packed := moving.pack(WORK, unsent, tracked(job)):
        note["unsent"] = blobs.publish({".": unsent}, root).digest
    storage.write_json(finished(root, job), note)
    moving.forget(packed)  # otherwise the cell's next job would send them, too


def finished(root: Anywhere, job: str) -> Anywhere:
    """The file that names a job's outputs."""
    return root / "outputs" / f"{job}.json"


def tracked(job: str) -> Path:
    """The folder on the user's side for a job's records not yet sent to MLflow; the next stage sends them."""
    return WORK / "jobs" / job


def _fetch_training_run(root: Anywhere, job: PurePosixPath) -> None:
    """Fetches the identity of the run that trained what `evaluate` scores, so that MLflow links the two."""
    results, stage, cell = job.parents[2], job.parents[1].name, job.parent.name
    if stage == "evaluate":
        file = PurePosixPath(results, "train", cell, FILE)
        kept = root / "drivers" / str(PurePosixPath(results, "train", cell)) / str(file)
        if kept.exists():
            (WORK / file).parent.mkdir(parents=True)
            storage.fetch(kept, WORK / file)


def _lay_out(contents: blobs.Contents, place: Path) -> None:
    """Links an input into place. Folders were published with their contents, single files under their name."""
    if place.exists():
        return  # in a folder that was an input itself
    source = contents.here()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(source / place.name if (source / place.name).is_file() else source)


def _check_versions(lock: Path) -> None:
    """Checks that installed packages have the locked versions; a missing package fails when it is imported."""
    pinned = re.findall(r"^([\w.-]+)==([\w.!+-]+)", lock.read_text(), re.MULTILINE) if lock.exists() else []
    installed: dict[str, str] = {}
    for found in metadata.distributions():  # in the order of sys.path: the first is the one that is imported
        installed.setdefault(found.name.lower().replace("_", "-"), found.version)
    wrong = []
    for name, version in pinned:
        there = installed.get(name.lower().replace("_", "-"), version)
        if there.split("+")[0] != version.split("+")[0]:  # after + comes the build: cpu, cu126
            wrong.append(f"{name} {there} instead of {version}")
    if wrong:
        raise StudyError(
            f"{LOCK}: the cluster has {', '.join(wrong)}; start it from the project's image, or set MNVI_PIP=1 where "
            "you submit the job to install the locked versions for it"
        )


def _check_tracking() -> None:
    database = store.database_file(store.address())
    if database is not None and not database.exists():
        raise StudyError(
            f"MLFLOW_TRACKING_URI: {database} does not exist on the cluster; start `mlflow server` where your "
            "machine and the cluster reach it, and set MLFLOW_TRACKING_URI to its address"
        )


@contextmanager
def _copied(folder: Path, copy: Anywhere) -> Iterator[None]:
    """Fetches the copy into the folder, then keeps the copy up to date while the block runs."""
    for name in storage.names(copy):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        storage.fetch(copy / str(name), folder / name)
    copier = _Copier(folder, copy)
    try:
        with repeating(copier.copy, EVERY, "copies state to storage"):
            yield
    finally:
        copier.copy()


class _Copier:
    def __init__(self, folder: Path, copy: Anywhere) -> None:
        self.folder, self.target = folder, copy
        self.seen = self._look()

    def copy(self) -> None:
        """Copies the files that have changed. It reports a failure, and the next call tries again."""
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
            return  # the file was deleted meanwhile
        except (StudyError, OSError) as error:
            say(f"the state that this job could resume from is not in storage yet: {error}")

    def _look(self) -> dict[PurePosixPath, tuple[int, int]]:
        found = {}
        for name in storage.names(self.folder):
            if not name.name.endswith(NOT_COPIED) and "ray" not in name.parts[:-1]:
                status = (self.folder / name).stat()
                found[name] = status.st_mtime_ns, status.st_size
        return found
