"""The stage `tune`: chooses a cell's hyperparameters.

python -m pipeline.tune boston-mnvi
"""

from __future__ import annotations

from pipeline import console, files, missing, submission
from pipeline.params import Cell
from pipeline.stages import chosen_cell, work


def main() -> None:
    with submission.entered():
        cell, why = chosen_cell("tune")
        if why:
            missing.tune(cell, why)
        elif cell.searched:
            work(cell, "tune")
        else:
            leave_unsearched(cell)


def leave_unsearched(cell: Cell) -> None:
    """Takes the hyperparameters from the parameters."""
    files.write_json(cell.tune / "trials.json", [])
    best = {"source": "params", "hyperparameters": cell.hyperparameters, "objective": None, "trials": 0}
    files.write_yaml(cell.tune / "best.yaml", best)


if __name__ == "__main__":
    console.run(main)
