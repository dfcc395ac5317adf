"""Writes the two tables and the searches as Markdown, and puts tables into pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import StudyError
from pipeline.files import read_text, write_text
from pipeline.report import views, wording
from pipeline.report.searches import Search, label, told
from pipeline.report.tables import NOT_JUDGED, Record
from pipeline.report.views import Grid

LEGEND = (
    "Ours ± standard deviation over runs; the paper's figure in brackets. "
    + "; ".join(f"{wording.MARKS[status]} {meaning}" for status, meaning in wording.MEANINGS.items())
    + "."
)


def table_1(records: Sequence[Record]) -> str:
    further = views.further_data(records)
    more = f"\n**{further.title}**\n\n{_table(further, 'method')}" if further else ""
    return f"{_table(views.table_1(records), 'method')}{more}\n{LEGEND}\n"


def table_2(records: Sequence[Record]) -> str:
    blocks = [f"**{grid.title}**\n\n{_table(grid, 'metric')}" for grid in views.table_2(records)]
    return "\n".join(blocks) + f"\n{wording.TABLE_2} {LEGEND}\n"


def searches(found: Sequence[Search]) -> str:
    """Each entry is an objective with its number of epochs in brackets; the chosen one is bold."""
    if not found:
        return "Not run here.\n"
    return "\n".join(f"**{search.cell}**\n\n{_grid(search)}" for search in found)


def _table(grid: Grid, corner: str) -> str:
    lines = [line([corner, *grid.columns]), line(["---"] * (len(grid.columns) + 1))]
    lines += [line([head, *(_entry(record) for record in row)]) for head, row in grid.rows]
    return "\n".join(lines) + "\n"


def _grid(search: Search) -> str:
    names = list(search.axes)
    if not names:
        return ""
    across, up = names[0], names[1] if len(names) > 1 else None
    columns, rows = search.axes[across], search.axes[up] if up else [None]
    corner = f"{label(up)} \\ {label(across)}" if up else label(across)
    table = [[corner, *map(wording.setting, columns)], ["---"] * (len(columns) + 1)]
    for row in rows:
        places = [{across: column} | ({up: row} if up else {}) for column in columns]
        table.append(["" if row is None else wording.setting(row), *(_place(search, place) for place in places)])
    return "\n".join(map(line, table)) + "\n"


def _place(search: Search, place: dict[str, Any]) -> str:
    trial = search.best_at(place)
    text = told(trial)
    if all(search.chosen.get(name) == value for name, value in place.items()):
        text = f"**{text}**"
    return text if trial is None else f"{text} ({trial['epochs']})"


def line(entries: Sequence[str]) -> str:
    return "| " + " | ".join(entry.replace("|", "\\|").replace("\n", " ") for entry in entries) + " |"


def _entry(record: Record | None) -> str:
    if record is None:
        return ""
    parts = [wording.ours(record)]
    if record.paper:
        parts.append(f"({wording.theirs(record)})")
    if record.ran and record.status != NOT_JUDGED:
        parts.append(wording.MARKS[record.status])
    remark = wording.remark(record)
    return " ".join(parts) + (f"<br>{remark}" if remark else "")


def fill_page(page: Path, tables: Mapping[str, str]) -> None:
    """Puts each table that the page has marks for between ``<!-- name -->`` and ``<!-- /name -->``.

    Writes nothing if the page has no marks, or one of a pair only.
    """
    text = read_text(page, f"git checkout {page}")
    marks = {name: (f"<!-- {name} -->", f"<!-- /{name} -->") for name in tables}
    marked = {name: pair for name, pair in marks.items() if any(mark in text for mark in pair)}
    wanted = marked or marks
    absent = [mark for pair in wanted.values() for mark in pair if text.count(mark) != 1]
    if absent:
        raise StudyError(f"{page}: expected exactly once, each on its own line: {', '.join(absent)}; add them")
    for name, (first, last) in marked.items():
        before, _, rest = text.partition(first)
        _, closing, after = rest.partition(last)
        if not closing:
            raise StudyError(f"{page}: {last} stands before {first}; move it after")
        text = f"{before}{first}\n\n{tables[name].strip()}\n\n{last}{after}"
    write_text(page, text)
