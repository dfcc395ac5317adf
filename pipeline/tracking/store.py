"""The MLflow store that keeps the runs: its address, its preparation, and a client for it."""

from __future__ import annotations

import functools
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from pipeline.errors import StudyError
from pipeline.masking import masked

if TYPE_CHECKING:
    from mlflow import MlflowClient

EMBEDDED = "sqlite:///mlflow.db"
_SQLITE = "sqlite:///"
# MLflow retries a silent server for minutes; here the spool does the waiting. Its telemetry would call a host that
# nobody named, and its progress bars would disturb ours.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def address() -> str:
    """``MLFLOW_TRACKING_URI``, or SQLite in the working folder; with an absolute path, for the workers."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or EMBEDDED
    if ("://" not in uri and uri != "databricks") or uri.startswith("file:"):
        raise StudyError(
            f"MLFLOW_TRACKING_URI={masked(uri)!r}: MLflow no longer keeps runs in a folder; name a server "
            f"(http://host:port) or a database ({EMBEDDED}), or unset it"
        )
    database = database_file(uri)
    return uri if database is None else f"{_SQLITE}{database.absolute()}"


def database_file(uri: str) -> Path | None:
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def client(uri: str) -> MlflowClient:
    """A client for the store. Opening a new SQLite store creates its tables, so one process at a time does it."""
    database = database_file(uri)
    if database is None:
        return _client(uri)
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{database}.lock"):
            return _client(uri)
    except Exception as error:  # any error of SQLAlchemy, SQLite, Alembic or the file system
        raise StudyError(
            f"{database}: MLflow's database cannot be opened ({masked(str(error)).splitlines()[0]}); make it writable, "
            "move it away to begin a new one, or set MLFLOW_TRACKING_URI"
        ) from error


@functools.cache
def _client(uri: str) -> MlflowClient:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # the URL contains the password
    with quiet_import():
        from mlflow import MlflowClient

        for talkative in ("alembic", "mlflow"):
            logging.getLogger(talkative).setLevel(logging.WARNING)
        return MlflowClient(uri)


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silences the warnings that parts of MLflow raise about their own code on import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def prepare() -> None:
    """Prepares the embedded store, so that processes started afterwards find it complete."""
    ready(address())


def ready(uri: str) -> None:
    """Loads MLflow and opens an embedded store, here rather than in a thread; only the sender contacts a server."""
    if database_file(uri) is not None or uri.startswith("http"):
        client(uri)


def artifact_folder(uri: str, experiment: str) -> str | None:
    """The folder for artifacts, beside the database; None for a server, which chooses its own."""
    database = database_file(uri)
    if database is None:
        return None
    return (database.parent / "mlartifacts" / re.sub(r"[^\w.-]", "_", experiment)).as_uri()
