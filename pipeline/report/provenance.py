"""Where the results come from: the code's commit, the data's digests and sources. There are no dates, so that the same
study gives the same page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline import git
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
    """The checked-out commit, and whether files differ from it."""
    head = git.ask("rev-parse", "HEAD")
    if head is None:
        return "unknown: not a git repository"
    changed = git.ask("status", "--porcelain", "--untracked-files=no", "--", "mnvi", "pipeline", "params.yaml")
    return f"{head} with uncommitted changes" if changed else head


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
