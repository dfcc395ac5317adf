"""Where the results come from: the code's commit, the data's digests and sources. No dates: the same study is the
same page."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipeline.files import read_json
from pipeline.params import Params
from pipeline.report.results import Record


@dataclass(frozen=True)
class DataSource:
    name: str
    digest: str | None
    source: str | None
    missing: str | None


def commit() -> str:
    """The commit that is checked out, and whether the files differ from it."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return "unknown: not a git repository"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "mnvi", "pipeline", "params.yaml")
    return f"{head} with uncommitted changes" if changed else head


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:  # the study also runs from an archive, on a machine without git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def data(params: Params) -> list[DataSource]:
    """Every data set that a cell of the study reads."""
    folders: dict[str, Path] = {}
    for cell in params.cells():
        folders |= {cell.dataset.name: cell.data, **cell.ood}
    return [_source(name, folder / "summary.json") for name, folder in folders.items()]


def _source(name: str, path: Path) -> DataSource:
    made_by = f"python -m pipeline.prepare {name}"
    summary = Record(path, made_by, read_json(path, made_by))
    missing = summary.get("missing", str, type(None))
    if missing is not None:
        return DataSource(name, None, None, missing)
    return DataSource(name, summary.get("digest", str), summary.get("source", str), None)
