"""The stage `train`: trains a cell's networks.

python -m pipeline.train boston-mnvi
"""

from __future__ import annotations

from pipeline import console, missing
from pipeline.stages import chosen_cell, package


def main() -> None:
    cell, why = chosen_cell("train")
    if why:
        missing.train(cell, why)
    else:
        package(cell, "training").run(cell)


if __name__ == "__main__":
    console.run(main)
