"""Reads tables of numbers from text; errors name the line and the column of each cell that is not a number."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import StudyError

MISSING = {"", "?", "-", "na", "n/a", "nan", "null", "none"}
SHOWN = 5  # bad cells that an error names

Line = tuple[int, list[str]]
"""A line's number in its file, counted from 1, and its cells."""


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from error


def whitespace(data: bytes, file: str) -> np.ndarray:
    """Reads blank-separated numbers without a heading: float64 [rows, columns]. Errors name ``file``."""
    lines = enumerate(_text(data, file).splitlines(), start=1)
    return numbers([(number, line.split()) for number, line in lines if line.strip()], file)


def separated(data: bytes, file: str) -> tuple[list[str] | None, np.ndarray]:
    """Reads numbers separated by commas, semicolons or tabs; returns the heading, if there is one, and the numbers."""
    text = _text(data, file)
    opening = text[: text.find("\n")] if "\n" in text else text
    delimiter = max(",;\t", key=opening.count)
    cells = csv.reader(text.splitlines(), delimiter=delimiter)
    lines = [(number, [cell.strip() for cell in row]) for number, row in enumerate(cells, start=1) if any(row)]
    heading = None
    if lines and not any(_is_number(cell) for cell in lines[0][1]):
        heading = lines.pop(0)[1]
        if twice := [name for index, name in enumerate(heading) if name in heading[:index]]:
            raise StudyError(f"{file}: two columns are named {twice[0]!r}; give each a name of its own")
    return heading, numbers(lines, file, heading)


def numbers(lines: Sequence[Line], file: str, heading: Sequence[str] | None = None) -> np.ndarray:
    """The cells as float64 [rows, columns]; an error names the first cells that are not finite numbers."""
    if not lines:
        raise StudyError(f"{file}: no rows; expected one line of numbers per example")
    width = len(heading or lines[0][1])
    wrong = []
    for number, cells in lines:
        if len(cells) != width:
            raise StudyError(f"{file}: line {number} has {len(cells)} columns, expected {width} as in the first line")
        for column, cell in enumerate(cells):
            if not _is_number(cell) or not math.isfinite(float(cell)):
                name = f" ({heading[column]})" if heading else ""
                wrong.append(f"line {number}, column {column + 1}{name}: {_complaint(cell)}")
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise StudyError(
            f"{file}: {'; '.join(wrong[:SHOWN])}{more}. Every cell must be a finite number: "
            "remove or fill in these rows, and encode text as numbers"
        )
    return np.array([[float(cell) for cell in cells] for _, cells in lines])


def integers(path: Path) -> list[int]:
    """Reads an index file: blank-separated whole numbers, which some programs write as 3.0000e+00."""
    values = whitespace(content(path), str(path)).ravel()
    if not all(value.is_integer() for value in values):
        raise StudyError(f"{path}: expected whole numbers only")
    return [int(value) for value in values]


def _text(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StudyError(f"{file}: not a text file ({error}); expected numbers as UTF-8 text") from error


def _is_number(cell: str) -> bool:
    if "_" in cell:  # only Python reads 1_000 as a number
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _complaint(cell: str) -> str:
    if cell.strip().lower() in MISSING:
        return "the value is missing"
    return f"{cell!r} is not a finite number"
