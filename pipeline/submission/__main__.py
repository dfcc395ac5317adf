"""Runs what a study lacks on a Ray cluster: searches, trainings and evaluations of all cells, side by side.

RAY_ADDRESS=http://head:8265 MNVI_STORAGE=s3://bucket/study python -m pipeline.submission
RAY_ADDRESS=http://head:8265 MNVI_STORAGE=s3://bucket/study python -m pipeline.submission --cells boston-mnvi,yacht-mnvi

Run `dvc repro prepare` before it, and `dvc repro` after it or beside it.
"""

from __future__ import annotations

from pipeline import cluster, console, params
from pipeline.submission import everything

AT_A_TIME = 8


def main() -> None:
    parser = console.parser("pipeline.submission", __doc__)
    parser.add_argument("--cells", type=lambda names: names.split(","), help="only these cells, separated by commas")
    parser.add_argument(
        "--at-a-time",
        type=int,
        default=AT_A_TIME,
        metavar="N",
        help="at most this many jobs, each of which takes up to a gigabyte of the head's memory (default: %(default)s)",
    )
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    arguments = parser.parse_args()
    cluster.configure()
    read = params.load(arguments.params)
    cells = read.cells() if arguments.cells is None else [read.cell(name) for name in arguments.cells]
    everything.submit(cells, arguments.params, max(1, arguments.at_a_time))


if __name__ == "__main__":
    console.run(main)
