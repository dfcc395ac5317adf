"""Predicts with a study's registered model: a CSV file, an image, or a folder of images.

python -m pipeline.predict prices-mnvi new.csv
python -m pipeline.predict prices-mnvi new.csv --refer 0.1 --output predictions.csv
python -m pipeline.predict lenet-mnist-mnvi photos/
python -m pipeline.predict lenet-mnist-mnvi photo.png --refer-above 0.5
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipeline import console, files, params
from pipeline.console import progress, say
from pipeline.data import parsing
from pipeline.data.folders import ENDINGS
from pipeline.data.shard_writing import opened, scaled
from pipeline.errors import StudyError
from pipeline.names import unknown
from pipeline.tracking import registered

SHOWN = 10  # rows in the terminal
BATCH = 256  # images at a time
UNCERTAINTY = {"regression": "std", "classification": "entropy"}
"""What decides which rows go to a person."""


@dataclass(frozen=True)
class Rows:
    """What to predict: a name for each row, and the inputs in batches."""

    names: list[str]
    batches: Iterable[np.ndarray]


def main() -> None:
    parser = console.parser("pipeline.predict", __doc__)
    parser.add_argument("cell", help="a cell of the study, as `python -m pipeline.params show` lists them")
    parser.add_argument("input", type=Path, help="a CSV file for a table's model; an image or a folder for an image's")
    parser.add_argument("--output", "-o", type=Path, help="write all rows to this CSV file")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--refer", type=_share, default=0.0, help="mark this share of the rows, the least certain ones")
    which.add_argument(
        "--refer-above",
        type=_bound,
        metavar="BOUND",
        help="mark rows whose entropy (for numbers: std) is above this; unlike a share it suits single rows",
    )
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    arguments = parser.parse_args()
    if not arguments.input.exists():
        raise StudyError(f"{arguments.input}: no such file or folder")
    cell = params.load(arguments.params).cell(arguments.cell)
    say(f"{cell.name}: loading the model")
    model = registered.load(registered.name_of(cell), f"python -m pipeline.train {cell.name}")
    if cell.kind == "regression":
        rows = _table(arguments.input, model)
    else:
        rows = _images(arguments.input, model, cell.dataset.size)
    heading, lines = _lines(rows, model, cell.kind, arguments.refer, arguments.refer_above)
    if arguments.output:
        files.write_text(arguments.output, _csv([heading, *lines]))
        say(f"{arguments.output}: {len(lines)} rows")
    _show(heading, lines)


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")


def _bound(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")


def _table(file: Path, model: registered.Model) -> Rows:
    """The features that the model was trained on, matched by name if it knows their names."""
    heading, values = parsing.separated(parsing.content(file), str(file))
    wanted: list[str] | None = model.settings.get("columns")
    if wanted is not None and heading is not None:
        missing = [name for name in wanted if name not in heading]
        if missing:
            raise unknown(f"{file}", missing[0], heading, "a column of this file, but the model needs it")
        values = values[:, [heading.index(name) for name in wanted]]
    width = len(model.settings["inputs"]["mean"])
    if values.shape[1] != width:
        raise StudyError(
            f"{file}: {values.shape[1]} columns, but the model takes {width} features; leave the target out, or give "
            "the file the heading of the training data"
        )
    return Rows([str(index) for index in range(len(values))], [values])


def _images(place: Path, model: registered.Model, size: int | None) -> Rows:
    """Images with as many pixels and channels as the model takes.

    Args:
        size: smaller side that the study gave photographs before cutting out the middle; None: they are resized whole.
    """
    found = sorted(place.rglob("*")) if place.is_dir() else [place]
    names = [path for path in found if path.suffix.lower() in ENDINGS and path.is_file()]
    if not names:
        raise StudyError(f"{place}: no images; known endings are {', '.join(sorted(ENDINGS))}")
    channels, height, width = model.shape
    mode = {1: "L", 3: "RGB"}.get(channels)
    if mode is None:
        raise StudyError(f"{place}: the model takes images of {channels} channels, which no image file has")

    def pixels(path: Path) -> np.ndarray:
        with opened(path) as image:
            whole = image.convert(mode)
        fitted = _middle(whole, size or 0, (width, height))
        return np.asarray(fitted, dtype=np.uint8).reshape(height, width, channels).transpose(2, 0, 1)

    def batches() -> Iterable[np.ndarray]:
        with progress("predict", len(names), "images") as bar:
            for start in range(0, len(names), BATCH):
                part = names[start : start + BATCH]
                yield np.stack([pixels(path) for path in part])
                bar.advance(len(part))

    return Rows([str(path) for path in names], batches())


def _middle(image: Image.Image, size: int, wanted: tuple[int, int]) -> Image.Image:
    """What evaluation sees of an image: its middle, or all of it if the study's images have no margin to cut off."""
    if size < max(wanted):
        return image.resize(wanted, Image.Resampling.BILINEAR)
    whole = scaled(image, size)
    left, top = (round((side - kept) / 2) for side, kept in zip(whole.size, wanted, strict=True))
    return whole.crop((left, top, left + wanted[0], top + wanted[1]))


def _lines(
    rows: Rows, model: registered.Model, kind: str, refer: float, above: float | None
) -> tuple[list[str], list[list[Any]]]:
    parts = [model.predict(batch) for batch in rows.batches]
    answer = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if kind == "classification":
        classes = model.settings.get("classes") or [str(k) for k in range(answer["probs"].shape[1])]
        answer = {
            "class": np.array([classes[k] for k in answer["label"]]),
            "probability": answer["probs"].max(1),
            **{name: answer[name] for name in ("entropy", "aleatoric", "epistemic")},
        }
    columns = dict(answer)
    if refer or above is not None:
        columns["refer"] = np.where(_referred(answer[UNCERTAINTY[kind]], refer, above), "yes", "no")
    first = "row" if kind == "regression" else "image"
    cells = [[_plain(values[index]) for values in columns.values()] for index in range(len(rows.names))]
    return [first, *columns], [[name, *line] for name, line in zip(rows.names, cells, strict=True)]


def _referred(uncertainty: np.ndarray, share: float, above: float | None) -> np.ndarray:
    if above is not None:
        return uncertainty > above
    marked = np.zeros(len(uncertainty), dtype=bool)
    marked[np.argsort(-uncertainty, kind="stable")[: math.ceil(share * len(uncertainty))]] = True
    return marked


def _plain(value: Any) -> Any:
    return f"{float(value):.6g}" if isinstance(value, np.floating) else str(value)


def _csv(lines: list[list[Any]]) -> str:
    text = StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _show(heading: list[str], lines: list[list[Any]]) -> None:
    shown = [heading, *lines[:SHOWN]]
    widths = [max(len(str(line[column])) for line in shown) for column in range(len(heading))]
    for line in shown:
        sys.stdout.write("  ".join(str(cell).ljust(width) for cell, width in zip(line, widths, strict=True)) + "\n")
    if len(lines) > SHOWN:
        sys.stdout.write(f"… and {len(lines) - SHOWN} more rows; --output FILE writes them all\n")


if __name__ == "__main__":
    console.run(main)
