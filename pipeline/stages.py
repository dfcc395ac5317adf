"""The part that all stages of a cell share: the command line, the choice of module, what the stage reads and makes.

Nothing here imports torch, Ray or MLflow: a stage that has nothing to do says so within a second.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from types import ModuleType

from pipeline import cluster, console, missing, params, stage_files, submission
from pipeline.done import Account
from pipeline.params import Cell, code


def run(stage: str, skip: Callable[[Cell, str], None]) -> None:
    """Works on the cell named on the command line; `skip` writes what the study needs if its data are missing."""
    cell, why = chosen_cell(stage)
    if why:
        skip(cell, why)
    else:
        work(cell, stage)


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
    if account(cell, stage).is_settled():
        return
    if submission.wanted(cell, stage):
        submission.submit(cell, stage, _arguments(stage).params)
    else:
        module(cell, stage).run(cell)
        submission.deliver(cell, stage)
    account(cell, stage).settle()


def account(cell: Cell, stage: str) -> Account:
    """What the stage depends on and makes, noted beside its state."""
    settings = {"settings": cell.settings(stage), "code": cell.code(stage)}
    note = cell.state(stage) / "done.json"
    reads, makes = stage_files.inputs(cell, stage), stage_files.outputs(cell, stage)
    return Account(f"{stage} {cell.name}", note, settings, reads, makes)


def _arguments(stage: str) -> argparse.Namespace:
    parser = console.parser(f"pipeline.{stage}", importlib.import_module(f"pipeline.{stage}").__doc__)
    parser.add_argument("cell", help="name of a cell in study.cells")
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    return parser.parse_args()
