"""What the stages of a cell have in common: their command line, and which package does the work."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

from pipeline import cluster, data, params, submission
from pipeline.params import Cell

PACKAGES = {"regression": "pipeline.regression", "classification": "pipeline.images"}


def chosen_cell(stage: str) -> tuple[Cell, str | None]:
    """The cell named on the command line, and why its data are missing, if they are."""
    arguments = _arguments(stage)
    cell = params.load(arguments.params).cell(arguments.cell)
    return cell, data.missing(cell.data)


def package(cell: Cell, module: str) -> ModuleType:
    """The module of the cell's kind; the other kind's is never imported, as it brings much with it."""
    cluster.configure()
    return importlib.import_module(f"{PACKAGES[cell.kind]}.{module}")


def work(cell: Cell, stage: str, module: str) -> None:
    """Runs the stage: here, which inside a job is the cluster, or as such a job if RAY_ADDRESS is a job server's."""
    if submission.wanted(cell, stage):
        submission.submit(cell, stage, _arguments(stage).params)
    else:
        package(cell, module).run(cell)
        submission.deliver(cell, stage)


def _arguments(stage: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.{stage}")
    parser.add_argument("cell", help="name of a cell in study.cells")
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    return parser.parse_args()
