"""A run as the stages see it: everything said to it is on disk when the call returns, and in MLflow soon after."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from pipeline import console, git
from pipeline.errors import StudyError
from pipeline.masking import masked
from pipeline.tracking import delivery, identity, sender, store, system
from pipeline.tracking.sender import Sender
from pipeline.tracking.spool import Spool

COMMIT = "MNVI_COMMIT"
_VALUE = 6000  # characters that MLflow keeps of a parameter
_KEY = 250
_FIRST_ANSWER = 10.0  # seconds given to the store for making the run
_SOON = 5.0  # for those who are being stopped
_PROFILE = 65_000


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Row(Protocol):
    """What is taken of a cell."""

    @property
    def experiment(self) -> Named: ...
    @property
    def method(self) -> str: ...


class Run:
    """A run in MLflow, by way of its journal in ``state``."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.spool = Spool(state)
        self.sender = Sender(state)

    @property
    def id(self) -> str | None:
        """None as long as the store has never answered."""
        return identity.read(self.state).id

    @property
    def instance(self) -> list[float | str | None]:
        """Tells this run and its children from others of the same stage: earlier, later, or in another store.

        The id is that of a new run when the store was emptied meanwhile, as soon as the store has answered.
        """
        known = identity.read(self.state)
        return [known.instance, known.store, known.id]

    def params(self, values: Mapping[str, Any]) -> None:
        """Settings, nested ones as `outer.inner`."""
        flat = {_key(key): _value(value) for key, value in _flatten(values)}
        self._tell([{"kind": "params", "values": flat}])

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step. One that was given before for this step stays as it is."""
        now = int(time.time() * 1000)
        self._tell(
            {"kind": "metric", "key": _key(key), "value": float(value), "step": int(step), "time": now}
            for key, value in values.items()
        )

    def tag(self, values: Mapping[str, Any]) -> None:
        self._tell([{"kind": "tags", "values": {_key(key): _value(value) for key, value in values.items()}}])

    def artifact(self, path: str | Path, folder: str = "") -> None:
        """A file or folder. It is uploaded from where it is, so it has to stay there until the run ends."""
        self._tell([{"kind": "artifact", "path": str(Path(path).absolute()), "folder": folder}])

    def dataset(self, summary: Mapping[str, Any], context: str = "training") -> None:
        """A data set that the run reads, by the `summary.json` that `prepare` wrote."""
        profile = {key: value for key, value in summary.items() if key not in ("name", "digest", "source")}
        if len(json.dumps(profile, default=str)) > _PROFILE:
            profile = {key: value for key, value in profile.items() if isinstance(value, int | float | str)}
        self._tell(
            [
                {
                    "kind": "dataset",
                    "name": summary["name"],
                    "digest": summary["digest"],
                    "source": masked(str(summary.get("source", ""))),
                    "profile": json.loads(json.dumps(profile, default=str)),
                    "context": context,
                }
            ]
        )

    def status(self, status: str) -> None:
        self._tell([{"kind": "status", "status": status, "time": int(time.time() * 1000)}])

    def flush(self, wait: float | None = None) -> bool:
        """Waits until everything has arrived, or so many seconds (`MNVI_TRACKING_WAIT` unless given)."""
        return self.sender.flush(sender.patience() if wait is None else wait)

    def close(self) -> None:
        """Stops sending; what has not arrived stays in the journal."""
        self.sender.close()

    def tell(self, record: dict[str, Any]) -> None:
        self._tell([record])

    def _tell(self, records: Any) -> None:
        self.spool.append(records)
        self.sender.notify()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sender.flush(sender.patience(), insist=False)
        self.close()


@contextmanager
def run(
    cell: Row | str,
    stage: str,
    *,
    child: str | None = None,
    parent: Run | None = None,
    state: str | Path,
    depends_on: Sequence[Any] = (),
) -> Iterator[Run]:
    """The MLflow run of a stage, or of a trial or seed in it.

    Args:
        cell: whose experiment it belongs to; a plain name for stages that have no cell.
        stage: name of the stage.
        child: name of the trial or seed.
        parent: the stage's own run.
        state: a folder that outlives the process, not shared with another run.
        depends_on: what its numbers come from, as JSON knows it: digests of settings, code, data, weights. A run of
            something else is not gone on in; children go with their stage and need not say.
    """
    folder = Path(state)
    if parent is not None and parent.state.absolute() == folder.absolute():
        raise ValueError(f"run: {folder} is the parent's; a child needs a folder of its own, e.g. {folder / 'child'}")
    experiment, method = (cell, "") if isinstance(cell, str) else (cell.experiment.name, cell.method)
    name = " ".join(part for part in (stage, method, child) if part)
    wait = sender.patience()
    known = identity.claim(folder, experiment, name, None if parent is None else parent.state, depends_on)
    store.ready(known.uri)
    it = Run(folder)
    try:
        it.status("RUNNING")
        it.tag({"stage": stage, **({"method": method} if method else {}), **_provenance()})
        if it.sender.flush(min(wait, _FIRST_ANSWER), insist=False) and parent is None:
            sender.send(folder)  # how those ended that made way for this run, which may take days
        with system.measuring(it, known.started) if stage == "train" and parent is None else nullcontext():
            yield it
    except (KeyboardInterrupt, SystemExit):
        _end(it, "KILLED", min(wait, _SOON), insist=False)
        raise
    except BaseException as error:  # told to the run, and raised again
        with suppress(StudyError):  # a full disk, about which the error itself says more
            it.tag({delivery.ERROR: f"{type(error).__name__}: {sender.brief(error)}"})
            _end(it, "FAILED", min(wait, _SOON), insist=False)
        raise
    else:
        _end(it, "FINISHED", wait, insist=parent is None)


def resume(state: str | Path) -> Run:
    """A run that another process has begun, for a worker to add to; use it as a context manager."""
    folder = Path(state)
    store.ready(identity.read(folder).uri)
    return Run(folder)


def _end(it: Run, status: str, wait: float, insist: bool) -> None:
    it.status(status)
    arrived = it.sender.flush(wait, insist)
    it.close()
    if not insist:
        return  # more is to come, and to look through all state once for each of a thousand trials takes minutes
    if arrived:
        sender.send(_root(it.state))
    else:
        console.say(
            f"MLflow has not taken everything of {it.state} ({it.sender.trouble or 'it is slow'}); the next stage "
            "sends the rest, or `python -m pipeline.tracking send`"
        )


def _root(state: Path) -> Path:
    """The folder of all state, `work`, if the state is in it."""
    return next((folder for folder in state.parents if folder.name == "work"), state)


def _provenance() -> dict[str, str]:
    tags = {}
    if commit := source_commit():
        tags["mlflow.source.git.commit"] = commit
    if lock := identity.lock_digest():
        tags[identity.LOCK] = lock
    return tags


def source_commit() -> str:
    """Of the code that runs; where it was brought without its repository, ``MNVI_COMMIT`` says."""
    return git.ask("rev-parse", "HEAD") or os.environ.get(COMMIT, "")


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _key(key: str) -> str:
    return re.sub(r"[^\w.\-/ :]", "_", key)[:_KEY]


def _value(value: Any) -> str:
    text = masked(value if isinstance(value, str) else json.dumps(value, default=str))
    note = f"… (cut, {len(text)} characters)"
    return text if len(text) <= _VALUE else text[: _VALUE - len(note)] + note
