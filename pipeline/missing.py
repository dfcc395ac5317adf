"""Missing data: how a stage learns that no source has its data, and what it writes so that the study can continue."""

from __future__ import annotations

from pathlib import Path

from pipeline import files
from pipeline.console import say
from pipeline.params import Cell


def why(folder: Path) -> str | None:
    """Why a data set is missing, if ``missing_data: skip`` lets the study continue without it."""
    summary = files.read_json(folder / "summary.json", f"python -m pipeline.prepare {folder.name}")
    reason: str | None = summary.get("missing")
    return reason


def tune(cell: Cell, why: str) -> None:
    best = {"source": "params", "hyperparameters": cell.hyperparameters, "objective": None, "trials": 0}
    files.write_json(cell.tune / "trials.json", [])
    files.write_yaml(cell.tune / "best.yaml", {**best, "missing": why})
    _say(cell, why)


def train(cell: Cell, why: str) -> None:
    files.write_json(cell.model / "training.json", {"complete": False, "missing": why})
    _say(cell, why)


def evaluate(cell: Cell, why: str) -> None:
    scores = {
        "kind": cell.kind,
        "data": cell.experiment.data,
        "experiment": cell.experiment.name,
        "method": cell.method,
        "network": cell.experiment.network,
        "complete": False,
        "runs": 0,
        "folds": None,
        "seconds": None,
        "num_parameters": None,
        "metrics": {},
        "missing": why,
    }
    files.write_json(cell.evaluate / "scores.json", scores)
    files.write_json(cell.evaluate / "metrics.json", {})
    files.write_json(cell.plots / "curves.json", {})
    _say(cell, why)


def _say(cell: Cell, why: str) -> None:
    say(f"{cell.name}: skipped, because its data are missing: {why}")
