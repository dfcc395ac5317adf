"""The stage `report`: writes tables beside the paper's, figures and one page to <results>/report.

python -m pipeline.report
python -m pipeline.report --readme README.md --results recorded/*
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import console, params
from pipeline.report.writing import fill_readme, write_report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.report")
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    parser.add_argument("--readme", type=Path, help="only write the tables between the marks of this file")
    parser.add_argument(
        "--results",
        type=Path,
        nargs="+",
        help="results folders whose scores and searches go into --readme (default: the study's)",
    )
    arguments = parser.parse_args()
    if arguments.results and not arguments.readme:
        parser.error("--results needs --readme; the report itself reads study.results of params.yaml")
    if arguments.readme:
        fill_readme(arguments.readme, arguments.results or [params.load(arguments.params).study.results])
        return
    folder = write_report(params.load(arguments.params))
    console.say(f"report: {folder / 'index.html'}")


if __name__ == "__main__":
    console.run(main)
