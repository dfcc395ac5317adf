"""The stage `evaluate`: scores a cell's trained networks on its test data.

python -m pipeline.evaluate boston-mnvi
"""

from __future__ import annotations

from pipeline import console, missing, stages


def main() -> None:
    stages.run("evaluate", missing.evaluate)


if __name__ == "__main__":
    console.run(main)
