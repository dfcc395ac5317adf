"""Starts a study of your own table or images: adds them to params.yaml, writes a study around them and selects it.

python -m pipeline.new prices.csv --target price
python -m pipeline.new prices.csv --target price --name houses --methods mnvi,ensemble
python -m pipeline.new photos/                                          one subfolder of images per class
python -m pipeline.new photos/ --network torchvision.models:efficientnet_b0 --weights DEFAULT
python -m pipeline.new photos/ --network mypackage.nets:small --weights none
dvc repro
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline import console, files, new_photos
from pipeline.console import say
from pipeline.data.folders import ENDINGS
from pipeline.data.table_arrays import find_table
from pipeline.errors import StudyError
from pipeline.params import Params
from pipeline.params.reading import load, parse, read
from pipeline.params.selecting import STUDIES, expanded, select
from pipeline.registry import networks

METHODS = ("mnvi", "mc_dropout", "ensemble", "deterministic")
IMAGE_METHODS = ("mnvi", "deterministic")


def main() -> None:
    parser = console.parser("pipeline.new", __doc__)
    parser.add_argument(
        "data", type=Path, help="a CSV file of numbers, or a folder with one subfolder of images per class"
    )
    parser.add_argument("--target", help="of a table: the column to predict, its name or its number from 0")
    parser.add_argument("--name", help="of the data set and the study (default: the file's)")
    parser.add_argument("--network", help="of images: a known one, package.module:function, or torchvision.models:NAME")
    parser.add_argument(
        "--weights", help="of images: what the network starts from, see docs/study.md; none: from scratch"
    )
    parser.add_argument(
        "--methods",
        type=lambda names: names.split(","),
        help=f"separated by commas (default: {','.join(METHODS)}; for images {','.join(IMAGE_METHODS)})",
    )
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="default: %(default)s")
    arguments = parser.parse_args()
    if not arguments.data.exists() and arguments.target is None:
        parser.error(f"{arguments.data}: no such file or folder")
    stem = arguments.data.resolve().stem if arguments.data.is_dir() else arguments.data.stem
    name = arguments.name or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if arguments.data.is_dir():
        if arguments.target is not None:
            parser.error("--target is for tables; the subfolders of a folder are its classes")
        given = {key: getattr(arguments, key) for key in ("network", "weights") if getattr(arguments, key) is not None}
        start_images(name, arguments.data, given, arguments.methods or list(IMAGE_METHODS), arguments.params)
        return
    if arguments.data.suffix.lower() in ENDINGS:
        parser.error(f"{arguments.data} is one image; name the folder that has one subfolder of images per class")
    if arguments.target is None:
        parser.error("a table needs --target, the column to predict")
    if arguments.network or arguments.weights:
        parser.error("--network and --weights are for images; set them for a table in its experiment in params.yaml")
    target = int(arguments.target) if arguments.target.isdigit() else arguments.target
    entry = {"kind": "table", "file": str(arguments.data), "target": target}
    start(name, entry, arguments.methods or list(METHODS), arguments.params)


def start(name: str, entry: dict[str, Any], methods: list[str], params: Path) -> None:
    """Adds the table and selects its study. Nothing is written unless table, settings and study are in order."""
    text = _with_entry("datasets", name, entry, _free(name, params), params)
    study = _study(name, methods, {"regression": {"runs": 1}})
    settings = _checked(name, study, text, params)
    table = find_table(settings.datasets[name])
    _write(name, study, text, params, f"Your own table: {entry['file']}.")
    say(f"{name}: {table.summary['rows']} rows, {table.summary['features']} features, target {entry['target']}")
    say(_next(name, study, params))


def start_images(name: str, folder: Path, given: dict[str, str], methods: list[str], params: Path) -> None:
    """Adds the images and selects their study.

    Args:
        given: network and weights, if they are not the recipe's.
    """
    text = _free(name, params)
    found = new_photos.look(folder, name)
    experiment: dict[str, Any] = {**found.experiment, **given}
    if given.get("weights") == "none" or ("network" in given and "weights" not in given):
        experiment["weights"] = None
    if networks.is_torchvisions(experiment.get("network", "")):
        experiment["normalisation"] = "imagenet"  # that of torchvision's weights
    text = _with_entry("datasets", name, found.dataset, text, params)
    text = _with_entry("experiments", name, experiment, text, params)
    study = _study(name, methods, {})
    _checked(name, study, text, params)
    _write(name, study, text, params, f"Your own images: {folder}.", found.link)
    say(f"{name}: {found.said}")
    say(_next(name, study, params))


def _study(name: str, methods: list[str], limits: dict[str, Any]) -> dict[str, Any]:
    known = {"name": name, "results": f"results/{name}", "experiments": [name], "methods": methods}
    return {**known, "limits": limits} if limits else known


def _write(
    name: str, study: dict[str, Any], text: str, params: Path, comment: str, before: Callable[[], None] = lambda: None
) -> None:
    """Writes study and settings, and selects the study.

    Args:
        before: called after all checks, before anything is written.
    """
    place = STUDIES / f"{name}.yaml"
    if place.exists():
        raise StudyError(f"{place}: exists already; choose another --name, or run `python -m pipeline.params select`")
    before()
    files.write_text(place, f"# {comment}\n{files.yaml_of({'study': study})}")
    files.write_text(params, text)
    select(name, params, [], None)


def _next(name: str, study: dict[str, Any], params: Path) -> str:
    return (
        f"added datasets.{name} to {params}, wrote {STUDIES / name}.yaml and selected it; next: dvc repro, then open "
        f"{study['results']}/report/index.html"
    )


def _free(name: str, params: Path) -> str:
    """The text of the settings, in which nothing has this name."""
    known = load(params)
    for section, names in (("datasets", known.datasets), ("experiments", known.experiments)):
        if name in names:
            raise StudyError(f"{params}: {section}.{name} exists already; choose another --name")
    return params.read_text(encoding="utf-8")


def _with_entry(section: str, name: str, entry: dict[str, Any], text: str, params: Path) -> str:
    line = files.yaml_of({name: entry}, default_flow_style=None, width=1000)
    heading = re.compile(rf"^{section}:[^\n]*\n", re.MULTILINE)
    return heading.sub(lambda found: f"{found[0]}  {line}", text, count=1)


def _checked(name: str, study: dict[str, Any], text: str, params: Path) -> Params:
    """The settings that the new text holds, with the new study in place of the present one."""
    try:
        raw = files.parse_yaml(text)
        return read({**raw, "study": expanded(study, {**raw, "study": parse(params)["study"]})})
    except StudyError as error:
        raise StudyError(f"{params} with datasets.{name}: {error}") from error


if __name__ == "__main__":
    console.run(main)
