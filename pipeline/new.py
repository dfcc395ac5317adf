"""Starts a study of your own table: adds it to params.yaml, writes a study around it and selects that study.

python -m pipeline.new prices.csv --target price
python -m pipeline.new prices.csv --target price --name houses --methods mnvi,ensemble
dvc repro
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pipeline import console, files
from pipeline.console import say
from pipeline.data.table_arrays import find_table
from pipeline.errors import StudyError
from pipeline.params import Params
from pipeline.params.reading import load, parse, read
from pipeline.params.selecting import STUDIES, expanded, select

METHODS = ("mnvi", "mc_dropout", "ensemble", "deterministic")
SECTION = re.compile(r"^datasets:[^\n]*\n", re.MULTILINE)


def main() -> None:
    parser = console.parser("pipeline.new", __doc__)
    parser.add_argument("file", help="a CSV file of numbers, with a heading or without")
    parser.add_argument("--target", required=True, help="the column to predict: its name, or its number from 0")
    parser.add_argument("--name", help="of the data set and the study (default: the file's)")
    parser.add_argument(
        "--methods",
        type=lambda names: names.split(","),
        default=list(METHODS),
        help=f"separated by commas (default: {','.join(METHODS)})",
    )
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="default: %(default)s")
    arguments = parser.parse_args()
    name = arguments.name or re.sub(r"[^a-z0-9]+", "-", Path(arguments.file).stem.lower()).strip("-")
    target = int(arguments.target) if arguments.target.isdigit() else arguments.target
    start(name, {"kind": "table", "file": arguments.file, "target": target}, arguments.methods, arguments.params)


def start(name: str, entry: dict[str, Any], methods: list[str], params: Path) -> None:
    """Adds the data set and selects its study. Nothing is written unless table, settings and study are in order."""
    text = _with_entry(name, entry, params)
    study = {
        "name": name,
        "results": f"results/{name}",
        "experiments": [name],
        "methods": methods,
        "limits": {"regression": {"runs": 1}},
    }
    settings = _checked(name, study, text, params)
    table = find_table(settings.datasets[name])
    place = STUDIES / f"{name}.yaml"
    if place.exists():
        raise StudyError(f"{place}: exists already; choose another --name, or run `python -m pipeline.params select`")
    files.write_text(place, f"# Your own table: {entry['file']}.\n{files.yaml_of({'study': study})}")
    files.write_text(params, text)
    select(name, params, [], None)
    say(
        f"{name}: {table.summary['rows']} rows, {table.summary['features']} features, target {entry['target']}\n"
        f"added datasets.{name} to {params}, wrote {place} and selected it; next: dvc repro, then open "
        f"{study['results']}/report/index.html"
    )


def _with_entry(name: str, entry: dict[str, Any], params: Path) -> str:
    known = load(params)
    for section, names in (("datasets", known.datasets), ("experiments", known.experiments)):
        if name in names:
            raise StudyError(f"{params}: {section}.{name} exists already; choose another --name")
    text = params.read_text(encoding="utf-8")
    line = files.yaml_of({name: entry}, default_flow_style=None, width=1000)
    return SECTION.sub(lambda found: f"{found[0]}  {line}", text, count=1)


def _checked(name: str, study: dict[str, Any], text: str, params: Path) -> Params:
    """The settings that the new text holds, with the new study in place of the present one."""
    try:
        raw = files.parse_yaml(text)
        return read({**raw, "study": expanded(study, {**raw, "study": parse(params)["study"]})})
    except StudyError as error:
        raise StudyError(f"{params} with datasets.{name}: {error}") from error


if __name__ == "__main__":
    console.run(main)
