"""The numbers of one sheet of an .xlsx workbook, which is a zip of XML files."""

from __future__ import annotations

import io
import re
import zipfile
from xml.etree import ElementTree  # nosec B405 # see below

LIMIT = 64 << 20  # bytes of one sheet
COLUMNS = 16_384  # a workbook has no more
SPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def sheet(workbook: bytes, number: int) -> list[list[str]]:
    """The cells below the heading as text; an empty cell is an empty text."""
    with zipfile.ZipFile(io.BytesIO(workbook)) as zipped, zipped.open(f"xl/worksheets/sheet{number}.xml") as file:
        text = file.read(LIMIT + 1)
    if len(text) > LIMIT:
        raise ValueError(f"sheet {number} is larger than {LIMIT} bytes")
    # Entities could expand without bound, and no workbook has any. Zero bytes mean an encoding that hides the word.
    if b"<!DOCTYPE" in text or b"\0" in text:
        raise ValueError(f"sheet {number} declares XML entities")
    sheet = ElementTree.fromstring(text)  # nosec B314 # no entities, bounded size
    rows = [_row(row) for row in sheet.iter(f"{SPACE}row")]
    return rows[1:]


def _row(row: ElementTree.Element) -> list[str]:
    cells: dict[int, str] = {}
    for cell in row:
        cells[_column(cell.attrib["r"])] = cell.findtext(f"{SPACE}v") or ""
    return [cells.get(column, "") for column in range(max(cells, default=-1) + 1)]


def _column(reference: str) -> int:
    """0 for A7, 26 for AA7."""
    letters = re.match("[A-Z]+", reference)
    if letters is None:
        raise ValueError(f"{reference!r} is not the name of a cell")
    number = 0
    for letter in letters[0][:4]:
        number = 26 * number + ord(letter) - ord("A") + 1
    if number > COLUMNS:
        raise ValueError(f"{reference!r} is beyond column {COLUMNS}")
    return number - 1
