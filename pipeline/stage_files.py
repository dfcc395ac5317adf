"""The files and folders that a stage of a cell reads and makes."""

from __future__ import annotations

from pathlib import Path

from pipeline.params import Cell


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
