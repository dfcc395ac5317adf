"""The stage `tune`: chooses a cell's hyperparameters.

python -m pipeline.tune boston-mnvi
"""

from __future__ import annotations

from pipeline import console, missing, submission
from pipeline.stages import chosen_cell, work


def main() -> None:
    with submission.entered():
        cell, why = chosen_cell("tune")
        if why:
            missing.tune(cell, why)
        else:
            work(cell, "tune", "search")


if __name__ == "__main__":
    console.run(main)
