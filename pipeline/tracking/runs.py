"""A run as the stages see it: every record is on disk when the call returns, and in MLflow soon after."""

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
_FIRST_ANSWER = 10.0  # seconds to wait for the store to create the run
_SOON = 5.0  # seconds to wait if the stage is being stopped
_PROFILE = 65_000


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Row(Protocol):
    """The attributes of a cell that a run needs."""

    @property
    def experiment(self) -> Named: ...
    @property
    def method(self) -> str: ...


class Run:
    """A run in MLflow, fed from its journal in ``state``."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.spool = Spool(state)
        self.sender = Sender(state)

    @property
    def id(self) -> str | None:
        """The run's id in MLflow; None until the store first answers."""
        return identity.read(self.state).id

    @property
    def instance(self) -> list[float | str | None]:
        """Distinguishes this run and its children from others of the same stage: earlier, later, or in another store.

        If the store was emptied meanwhile, the id becomes that of a new run as soon as the store answers.
        """
        known = identity.read(self.state)
        return [known.instance, known.store, known.id]

    def params(self, values: Mapping[str, Any]) -> None:
        """Records settings; nested ones become `outer.inner`."""
        flat = {_key(key): _value(value) for key, value in _flatten(values)}
        self._tell([{"kind": "params", "values": flat}])

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Records the numbers of a step. The first value recorded for a step stays."""
        now = int(time.time() * 1000)
        self._tell(
            {"kind": "metric", "key": _key(key), "value": float(value), "step": int(step), "time": now}
            for key, value in values.items()
        )

    def tag(self, values: Mapping[str, Any]) -> None:
        self._tell([{"kind": "tags", "values": {_key(key): _value(value) for key, value in values.items()}}])

    def artifact(self, path: str | Path, folder: str = "") -> None:
        """Records a file or folder. It is uploaded later, so it must stay in place until the run ends."""
        self._tell([{"kind": "artifact", "path": str(Path(path).absolute()), "folder": folder}])

    def dataset(self, summary: Mapping[str, Any], context: str = "training") -> None:
        """Records a data set that the run reads, as described by the `summary.json` of `prepare`."""
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

    def scores_of(self, trained: Path, model: str, scores: Mapping[str, float]) -> None:
        """Links this run's scores with what was trained.

        Args:
            trained: the state folder of the stage `train`; without a run there, or in another store, nothing happens.
            model: the registered model's name.
            scores: a few, for the descriptions.
        """
        if (trained / identity.FILE).exists():
            known = identity.read(trained)
            if known.id is not None and known.store == identity.read(self.state).store:
                self._tell([{"kind": "link", "trained": known.id, "model": model, "scores": dict(scores)}])

    def describe(self, model: str, text: str) -> None:
        """Records what a registered model is, as Markdown; MLflow shows it on the model's page."""
        self._tell([{"kind": "describe", "name": model, "text": masked(text)}])

    def status(self, status: str) -> None:
        self._tell([{"kind": "status", "status": status, "time": int(time.time() * 1000)}])

    def flush(self, wait: float | None = None) -> bool:
        """Waits until MLflow has received all records, at most ``wait`` seconds (default: `MNVI_TRACKING_WAIT`)."""
        return self.sender.flush(sender.patience() if wait is None else wait)

    def close(self) -> None:
        """Stops sending; unsent records stay in the journal."""
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
        cell: the cell whose experiment the run belongs to; a plain name for stages without a cell.
        stage: name of the stage.
        child: name of the trial or seed.
        parent: the stage's own run.
        state: a folder that outlives the process, not shared with another run.
        depends_on: JSON values that the run's numbers depend on: digests of settings, code, data, weights. If they
            change, the stage begins a new run. Children follow their stage and need not give this.
    """
    folder = Path(state)
    if parent is not None and parent.state.absolute() == folder.absolute():
        raise ValueError(f"run: {folder} is the parent's; a child needs its own folder, e.g. {folder / 'child'}")
    experiment, method = (cell, "") if isinstance(cell, str) else (cell.experiment.name, cell.method)
    name = " ".join(part for part in (stage, method, child) if part)
    wait = sender.patience()
    known = identity.claim(folder, experiment, name, None if parent is None else parent.state, depends_on)
    store.ready(known.uri)
    it = Run(folder)
    try:
        it.status("RUNNING")
        it.tag({"stage": stage, **({"method": method} if method else {}), **_provenance(stage)})
        if it.sender.flush(min(wait, _FIRST_ANSWER), insist=False) and parent is None:
            sender.send(folder)  # send the ends of earlier runs in this folder now: this run may take days
        with system.measuring(it, known.started) if stage == "train" and parent is None else nullcontext():
            yield it
    except (KeyboardInterrupt, SystemExit):
        _end(it, "KILLED", min(wait, _SOON), insist=False)
        raise
    except BaseException as error:  # recorded in the run, and raised again
        with suppress(StudyError):  # a full disk: the error itself says more about it
            it.tag({delivery.ERROR: f"{type(error).__name__}: {sender.brief(error)}"})
            _end(it, "FAILED", min(wait, _SOON), insist=False)
        raise
    else:
        _end(it, "FINISHED", wait, insist=parent is None)


def resume(state: str | Path) -> Run:
    """A run that another process began, for a worker to add records to; use it as a context manager."""
    folder = Path(state)
    store.ready(identity.read(folder).uri)
    return Run(folder)


def _end(it: Run, status: str, wait: float, insist: bool) -> None:
    it.status(status)
    arrived = it.sender.flush(wait, insist)
    it.close()
    if not insist:
        return  # the stage's own end sends the rest; searching all state after each of a thousand trials takes minutes
    if arrived:
        sender.send(_root(it.state))
    else:
        console.say(
            f"MLflow has not received all records of {it.state} ({it.sender.trouble or 'it is slow'}); the next stage "
            "or `python -m pipeline.tracking send` sends the rest"
        )


def _root(state: Path) -> Path:
    """The folder `work`, which contains all state, if this state is in it."""
    return next((folder for folder in state.parents if folder.name == "work"), state)


def _provenance(stage: str) -> dict[str, str]:
    tags = {"mlflow.source.name": f"pipeline.{stage}", "mlflow.source.type": "LOCAL"}
    if commit := source_commit():
        tags["mlflow.source.git.commit"] = commit
    if lock := identity.lock_digest():
        tags[identity.LOCK] = lock
    return tags


def source_commit() -> str:
    """The commit of the running code; code without its repository takes it from ``MNVI_COMMIT``."""
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
