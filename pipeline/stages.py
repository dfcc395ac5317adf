"""The part that all stages of a cell share: the command line, the choice of module, the check for work to do.

Nothing here imports torch, Ray or MLflow: a stage that has nothing to do says so within a second.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline import cluster, files, missing, params, submission
from pipeline.console import say
from pipeline.params import Cell, code

DONE = "done.json"  # beside a stage's state: what the stage read and wrote when it last finished


def chosen_cell(stage: str) -> tuple[Cell, str | None]:
    """The cell named on the command line, and why its data are missing, if they are."""
    arguments = _arguments(stage)
    cell = params.load(arguments.params).cell(arguments.cell)
    return cell, missing.why(cell.data)


def module(cell: Cell, stage: str) -> ModuleType:
    """The stage's module for cells of this kind. The other kind's module stays unimported: it is slow to load."""
    cluster.configure()
    return importlib.import_module(code.entry(cell.kind, stage))


def work(cell: Cell, stage: str) -> None:
    """Runs the stage here (inside a job that is the cluster), or submits it if RAY_ADDRESS names a job server."""
    if is_done(cell, stage):
        made = ", ".join(str(path) for path in outputs(cell, stage))
        say(f"{stage} {cell.name}: nothing to do, {made} is up to date; delete it to make it again")
        return
    if submission.wanted(cell, stage):
        submission.submit(cell, stage, _arguments(stage).params)
    else:
        module(cell, stage).run(cell)
        submission.deliver(cell, stage)
    files.write_json(cell.state(stage) / DONE, _account(cell, stage))


def is_done(cell: Cell, stage: str) -> bool:
    """Whether the stage made its present outputs from its present inputs, settings and code."""
    note = cell.state(stage) / DONE
    if not note.exists() or not all(path.exists() for path in outputs(cell, stage)):
        return False
    known: dict[str, Any] = files.read_json(note, f"python -m pipeline.{stage} {cell.name}")
    return known == _account(cell, stage)


def inputs(cell: Cell, stage: str) -> list[Path]:
    """Files and folders that a stage reads besides its settings."""
    read = {
        "tune": [],
        "train": [cell.tune / "best.yaml"],
        "evaluate": [cell.tune / "best.yaml", cell.model, *cell.ood.values()],
    }
    return [cell.data, *read[stage]]


def outputs(cell: Cell, stage: str) -> list[Path]:
    """Files and folders that DVC expects the stage to write."""
    if stage == "train":
        return [cell.model]
    if stage == "tune":
        return [cell.tune / "best.yaml", cell.tune / "trials.json"]
    return [cell.plots, cell.evaluate / "scores.json", cell.evaluate / "metrics.json"]


def _account(cell: Cell, stage: str) -> dict[str, str]:
    """Digests of everything the stage depends on, and of its outputs.

    Inputs count by name, size and modification time, since data may be hundreds of gigabytes. Outputs count by name and
    size alone, since DVC changes their modification time when it moves them into its cache.
    """
    settings = {"settings": cell.settings(stage), "code": cell.code(stage)}
    read = [(str(path), size, time) for path, size, time in _files(inputs(cell, stage))]
    made = [(str(path), size) for path, size, _ in _files(outputs(cell, stage))]
    return {"depends_on": _digest([settings, read]), "made": _digest(made)}


def _files(paths: list[Path]) -> list[tuple[Path, int, int]]:
    below = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    statuses = {file: file.stat() for file in below if file.is_file()}
    return [(file, status.st_size, status.st_mtime_ns) for file, status in statuses.items()]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _arguments(stage: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{stage}")
    parser.add_argument("cell", help="name of a cell in study.cells")
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    return parser.parse_args()
