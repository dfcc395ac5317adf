"""The stage `evaluate`: scores a cell's trained networks on its test data.

python -m pipeline.evaluate boston-mnvi
"""

from __future__ import annotations

from pipeline import console, missing
from pipeline.stages import chosen_cell, package


def main() -> None:
    cell, why = chosen_cell("evaluate")
    if why:
        missing.evaluate(cell, why)
    else:
        package(cell, "evaluation").run(cell)


if __name__ == "__main__":
    console.run(main)
