"""The stage `tune`: chooses a cell's hyperparameters.

python -m pipeline.tune boston-mnvi
"""

from __future__ import annotations

from pipeline import console, files, missing, stages, submission
from pipeline.params import Cell


def main() -> None:
    with submission.entered():
        cell, why = stages.chosen_cell("tune")
        if why:
            missing.tune(cell, why)
        elif cell.searched:
            stages.work(cell, "tune")
        elif not stages.account(cell, "tune").is_settled():
            leave_unsearched(cell)
            stages.account(cell, "tune").settle()


def leave_unsearched(cell: Cell) -> None:
    """Takes the hyperparameters from the parameters."""
    files.write_json(cell.tune / "trials.json", [])
    best = {"source": "params", "hyperparameters": cell.hyperparameters, "objective": None, "trials": 0}
    files.write_yaml(cell.tune / "best.yaml", best)


if __name__ == "__main__":
    console.run(main)
