"""The stage `tune`: chooses a cell's hyperparameters.

python -m pipeline.tune boston-mnvi
"""

from __future__ import annotations

from pipeline import console, missing
from pipeline.stages import chosen_cell, package


def main() -> None:
    cell, why = chosen_cell("tune")
    if why:
        missing.tune(cell, why)
    else:
        package(cell, "search").run(cell)


if __name__ == "__main__":
    console.run(main)
