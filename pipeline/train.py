"""The stage `train`: trains a cell's networks.

python -m pipeline.train boston-mnvi
"""

from __future__ import annotations

from pipeline import console, missing, submission
from pipeline.stages import chosen_cell, work


def main() -> None:
    with submission.entered():
        cell, why = chosen_cell("train")
        if why:
            missing.train(cell, why)
        else:
            work(cell, "train")


if __name__ == "__main__":
    console.run(main)
