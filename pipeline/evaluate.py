"""The stage `evaluate`: scores a cell's trained networks on its test data.

python -m pipeline.evaluate boston-mnvi
RAY_ADDRESS=http://head:8265 MNVI_STORAGE=s3://bucket/study python -m pipeline.evaluate lenet-mnist-mnvi    on a cluster
"""

from __future__ import annotations

from pipeline import console, missing, stages, submission


def main() -> None:
    with submission.entered():
        stages.run("evaluate", missing.evaluate)


if __name__ == "__main__":
    console.run(main)
