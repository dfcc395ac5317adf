"""The stage `evaluate`: scores a cell's trained networks on its test data.

python -m pipeline.evaluate boston-mnvi
"""

from __future__ import annotations

from pipeline import console, missing
from pipeline.stages import chosen_cell, work


def main() -> None:
    cell, why = chosen_cell("evaluate")
    if why:
        missing.evaluate(cell, why)
    else:
        work(cell, "evaluate")


if __name__ == "__main__":
    console.run(main)
