"""The MLflow run that a state folder belongs to; creates the run if there is none yet."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import console
from pipeline.errors import StudyError
from pipeline.files import read_json, write_json
from pipeline.masking import HIDDEN, masked
from pipeline.tracking import presentation, store
from pipeline.tracking.spool import Spool

if TYPE_CHECKING:
    from mlflow import MlflowClient

FILE = "mlflow-run.json"
LOCK = "dvc.lock"  # also the name of the tag with its digest
JOB = "MNVI_JOB"  # set in a submitted job: <results>/<stage>/<cell>/<fingerprint>, the same for all its attempts
KEY = "mnvi.key"


@dataclass(frozen=True)
class Identity:
    """Identifies the run, in a file in the state folder. The id is None until the store answers for the first time."""

    store: str  # without password
    experiment: str
    name: str
    parent: str | None  # state folder of the parent run, relative to this one
    instance: float  # when the stage's own run began: distinguishes its children from those of an earlier run
    started: float
    depends_on: str  # digest
    key: str  # value of the run's tag KEY: finds the run if this file, or the answer to its creation, was lost
    id: str | None = None

    @property
    def uri(self) -> str:
        """The store's address; a password exists only in the environment."""
        given = store.address()
        if masked(given) == self.store:
            return given
        if HIDDEN in self.store:
            raise StudyError(f"set MLFLOW_TRACKING_URI to {self.store} with the password, which is stored nowhere else")
        return self.store


def read(folder: Path) -> Identity:
    path = folder / FILE
    content = read_json(path, "a stage that has a run in MLflow")
    try:
        return Identity(**content)
    except TypeError as error:
        raise StudyError(f"{path}: not what a stage writes ({error}); delete it to begin a new run") from error


def claim(folder: Path, experiment: str, name: str, parent: Path | None, depends_on: Sequence[Any] = ()) -> Identity:
    """The identity in the folder if its run is to continue, else a new one.

    A stage that was stopped or failed continues its run, even if only DVC was stopped before it recorded the stage's
    end. A finished stage that runs again gets a new run. So does a stage whose settings, code or data have changed,
    because MLflow keeps the first value of a parameter or step. Children follow their stage.
    """
    started = time.time()
    instance, digest = started if parent is None else read(parent).instance, _digest(depends_on)
    wanted = Identity(
        store=masked(store.address()),
        experiment=experiment,
        name=name,
        parent=None if parent is None else os.path.relpath(parent, folder),
        instance=instance,
        started=started,
        depends_on=digest,
        key=_digest([os.environ.get(JOB, instance), experiment, name, digest]),
    )
    if (folder / FILE).exists():
        kept = read(folder)
        finished = _last_status(folder) == "FINISHED"
        over = finished and _noted(folder) if parent is None else kept.instance != wanted.instance
        of_this = (kept.experiment, kept.name, kept.depends_on) == (experiment, name, wanted.depends_on)
        if over or not of_this:
            _retire(folder, parent)
        elif kept.store == wanted.store:
            return kept
        else:
            console.say(f"MLflow: the run of {folder} is in {kept.store}; beginning a new one in {wanted.store}")
            wanted = replace(wanted, instance=kept.instance, started=kept.started, key=kept.key)
    write(folder, wanted)
    return wanted


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _last_status(folder: Path) -> str | None:
    statuses = [entry.record["status"] for entry in Spool(folder).read(0) if entry.record["kind"] == "status"]
    return statuses[-1] if statuses else None


def _noted(folder: Path) -> bool:
    """Whether DVC has written its lock file since the run began, or is not in use."""
    tags = [entry.record["values"] for entry in Spool(folder).read(0) if entry.record["kind"] == "tags"]
    begun_with = next((values[LOCK] for values in reversed(tags) if LOCK in values), None)
    return begun_with is None or begun_with != lock_digest()


def lock_digest() -> str | None:
    """Digest of DVC's lock file, which DVC rewrites after each stage."""
    lock = Path(LOCK)
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock.exists() else None


def _retire(folder: Path, parent: Path | None) -> None:
    """Clears the folder and the folders of its children for other runs.

    Runs that were killed outright get their end now. Unsent records wait in separate folders, where a child finds its
    own parent and not the next one.
    """
    spool, children = Spool(folder), _children(folder)
    with spool.lock(timeout=30):
        kept = read(folder)
        aside = folder / f"unsent-{int(kept.started * 1000)}"
        if any(pending(one) or _last_status(one) == "RUNNING" for one in (folder, *children)):
            write(aside, replace(kept, parent=None if parent is None else os.path.relpath(parent, aside)))
        for child in children:
            _retire(child, aside)
        if _last_status(folder) == "RUNNING":
            last = max(entry.record.get("time", 0) for entry in spool.read(0))
            spool.append([{"kind": "status", "status": "KILLED", "time": last}])
        if pending(folder):
            spool.move(aside)
        spool.clear()
        (folder / FILE).unlink()


def _children(folder: Path) -> list[Path]:
    """Subfolders whose runs are children of this folder's run."""
    below = {path.parent: read(path.parent).parent for path in sorted(folder.rglob(FILE))}
    here = os.path.normpath(folder)
    return [one for one, parent in below.items() if parent is not None and os.path.normpath(one / parent) == here]


def pending(folder: Path) -> bool:
    """Whether the folder's journal has records that MLflow has not received."""
    identity, spool = read(folder), Spool(folder)
    return bool(spool.read(spool.sent(identity.id) if identity.id else 0))


def write(folder: Path, identity: Identity) -> None:
    write_json(folder / FILE, asdict(identity))


def settle(folder: Path, check: bool) -> Identity:
    """The identity with an id; creates a run if there is none, or if ``check`` and the store no longer has it.

    The caller holds the folder's lock.
    """
    identity = read(folder)
    client = store.client(identity.uri)
    if identity.id is not None and (not check or _is_there(client, identity.id)):
        return identity
    if identity.id is not None:
        console.say(f"MLflow: run {identity.id} of {folder} is no longer in {identity.store}; beginning a new one")
    made = replace(identity, id=_create(client, folder, identity))
    write(folder, made)
    return made


def _is_there(client: MlflowClient, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def _create(client: MlflowClient, folder: Path, identity: Identity) -> str:
    """Creates a run, or finds the one that an earlier attempt created but could not record."""
    tags = {KEY: identity.key}
    if identity.parent is not None:
        above = Path(os.path.normpath(folder / identity.parent))
        with Spool(above).lock(timeout=30):
            tags["mlflow.parentRunId"] = str(settle(above, check=False).id)
    experiment = _experiment(client, identity)
    for run in client.search_runs([experiment], f"tags.`{KEY}` = '{identity.key}'", max_results=1):
        return str(run.info.run_id)
    started = int(identity.started * 1000)
    return str(client.create_run(experiment, started, tags, run_name=identity.name).info.run_id)


def _experiment(client: MlflowClient, identity: Identity) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(identity.experiment)
    if found is None:
        place = store.artifact_folder(identity.uri, identity.experiment)
        try:
            made = str(client.create_experiment(identity.experiment, artifact_location=place))
            presentation.describe(client, made, {})
            return made
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(identity.experiment)  # another process was faster
    if found is None or found.lifecycle_stage != "active":
        raise StudyError(
            f"MLflow experiment {identity.experiment!r} was deleted in {identity.store}; "
            "run `mlflow experiments restore` to bring it back, or `mlflow gc` to remove it for good"
        )
    presentation.describe(client, found.experiment_id, found.tags)
    return str(found.experiment_id)
