"""Mends the embedded store after the project's folder was moved: MLflow keeps absolute paths of artifacts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from urllib.parse import quote

from pipeline.errors import StudyError
from pipeline.tracking import store

ARTIFACTS = "/mlartifacts/"
# Each location with its row; what writes it back.
_LOCATIONS = {
    "SELECT rowid, artifact_location FROM experiments": "UPDATE experiments SET artifact_location = ? WHERE rowid = ?",
    "SELECT rowid, artifact_uri FROM runs": "UPDATE runs SET artifact_uri = ? WHERE rowid = ?",
    "SELECT rowid, artifact_location FROM logged_models": (
        "UPDATE logged_models SET artifact_location = ? WHERE rowid = ?"
    ),
    "SELECT rowid, source FROM model_versions": "UPDATE model_versions SET source = ? WHERE rowid = ?",
    "SELECT rowid, storage_location FROM model_versions": (
        "UPDATE model_versions SET storage_location = ? WHERE rowid = ?"
    ),
}


def relocate() -> int:
    """Points locations of artifacts on this machine to the folder beside the database; returns how many have changed.

    Artifacts in storage, such as s3://bucket/mlartifacts/1, stay where they are.
    """
    database = store.database_file(store.address())
    if database is None:
        raise StudyError(f"{store.address()}: a server keeps its own artifacts; this is for the database of a folder")
    if not database.exists():
        raise StudyError(f"{database}: there is no such database; run this in the project's folder")
    here = f"file://{quote(str(database.parent))}"
    changed = 0
    with closing(sqlite3.connect(database)) as connection, connection:
        for find, write in _LOCATIONS.items():
            for row, location in connection.execute(find).fetchall():
                before, found, rest = (location or "").rpartition(ARTIFACTS)
                if found and before != here and _is_local(before):
                    connection.execute(write, (f"{here}{ARTIFACTS}{rest}", row))
                    changed += 1
    return changed


def _is_local(location: str) -> bool:
    return location.startswith(("/", "file:"))
