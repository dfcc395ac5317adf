"""The stage `train`: trains a cell's networks.

python -m pipeline.train boston-mnvi
"""

from __future__ import annotations

from pipeline import console, missing, stages, submission


def main() -> None:
    with submission.entered():
        stages.run("train", missing.train)


if __name__ == "__main__":
    console.run(main)
