"""The stage `train`: trains a cell's networks.

python -m pipeline.train boston-mnvi
RAY_ADDRESS=http://head:8265 MNVI_STORAGE=s3://bucket/study python -m pipeline.train lenet-mnist-mnvi    on a cluster
"""

from __future__ import annotations

from pipeline import console, missing, stages, submission


def main() -> None:
    with submission.entered():
        stages.run("train", missing.train)


if __name__ == "__main__":
    console.run(main)
