"""Shows and checks the settings, and selects the study to run.

python -m pipeline.params check
python -m pipeline.params show
python -m pipeline.params select uci --cells boston-mnvi,yacht-mnvi
python -m pipeline.params select uci --add prices                          with a table of your own
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import console
from pipeline.params import consistency, selecting, tracked
from pipeline.params.cells import Cell
from pipeline.params.reading import Params, load


def main() -> None:
    arguments = _arguments()
    path: Path = arguments.params
    if arguments.command == "select":
        selecting.select(arguments.study, path, arguments.cells, arguments.results, arguments.add)
    params = load(path)
    for note in consistency.notes(params.study, params.planned):
        console.say(f"note: {note}")
    if arguments.command == "settings":
        tracked.write_settings(params)
    elif arguments.command == "ood":
        tracked.write_ood(params)
    elif arguments.command == "report":
        print(f"report: {params.study.results / 'report' / 'index.html'}")
    elif arguments.command == "check":
        print(f"{path}: {len(params.experiments)} experiments and {len(params.study.cells)} cells are in order")
    else:
        show(params)


def _arguments() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--params", type=Path, default=Path("params.yaml"), help="default: %(default)s")
    parser = console.parser("pipeline.params", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", parents=[common], help="read the settings and name the first mistake")
    commands.add_parser("show", parents=[common], help="print each cell that would run, with its settings")
    commands.add_parser("report", parents=[common], help="print the path of the report")
    commands.add_parser("settings", parents=[common], help="write <results>/settings, which DVC compares")
    commands.add_parser("ood", parents=[common], help="write <results>/ood, which DVC compares")
    select = commands.add_parser("select", parents=[common], help="copy a study from studies/ into the settings")
    select.add_argument("study")
    select.add_argument(
        "--cells", type=lambda names: names.split(","), default=[], help="only these cells, separated by commas"
    )
    select.add_argument(
        "--add",
        type=lambda names: names.split(","),
        default=[],
        help="also these, separated by commas: experiments such as your own table, or cells <experiment>-<method>",
    )
    select.add_argument("--results", help="folder for the results (default: the study's own)")
    return parser.parse_args()


def show(params: Params) -> None:
    study = params.study
    print(f"study {study.name}, preset {study.preset}, results in {study.results}")
    print(f"data: {', '.join(study.data)}")
    for cell in params.cells():
        print(f"{cell.name}: {_summary(cell)}")


def _summary(cell: Cell) -> str:
    experiment = cell.experiment
    count, unit = (experiment.runs, "run") if cell.kind == "regression" else (experiment.seeds, "seed")
    repeats = f"{count} {unit}" + ("" if count == 1 else "s")
    searched = f"search over {len(cell.grid_points())} points, then " if cell.searched else ""
    chosen = ", ".join(f"{key} {value:g}" for key, value in cell.hyperparameters.items())
    cut = "" if cell.complete else " (cut short by study.limits)"
    return f"{searched}{repeats} of {experiment.epochs} epochs{cut}" + (f", {chosen}" if chosen else "")


if __name__ == "__main__":
    console.run(main)
