"""Turns figures into ratios, and ratios into tables."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks import targets

RESULTS = Path(__file__).parent / "results" / "speed.json"
PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
QUANTITIES = ("inference", "training", "memory")


def ratios(records: list[dict]) -> list[dict]:
    """Ratios of each figure to that of the eager deterministic network, and to the best deterministic one."""
    found = []
    for quantity in QUANTITIES:
        matching = [record for record in records if record["quantity"] == quantity]
        figures = {(r["method"], r["mode"]): r.get("milliseconds", r.get("bytes")) for r in matching}
        eager = figures["deterministic", "eager"]
        best = min(value for (method, _), value in figures.items() if method == "deterministic")
        for (method, mode), value in figures.items():
            row = {"method": method, "mode": mode, "quantity": quantity, "figure": value}
            found.append({**row, "to_eager": value / eager, "to_best": value / best})
    return found


def markdown(model: str, rows: list[dict]) -> str:
    """``a / b``: ratio to the eager deterministic network / to the best deterministic one."""
    lines = [
        f"\n### {model}\n",
        "| method | mode | inference | training | memory kept for backward |",
        "| --- | --- | --- | --- | --- |",
    ]
    for method, mode in dict.fromkeys((row["method"], row["mode"]) for row in rows):
        cells = {r["quantity"]: r for r in rows if (r["method"], r["mode"]) == (method, mode)}
        text = [f"{cells[q]['to_eager']:.2f} / {cells[q]['to_best']:.2f} ({_unit(cells[q])})" for q in QUANTITIES]
        lines.append(f"| {method} | {mode} | {' | '.join(text)} |")
    return "\n".join(lines)


def _unit(row: dict) -> str:
    return f"{row['figure'] / 2**20:.0f} MiB" if row["quantity"] == "memory" else f"{row['figure']:.0f} ms"


def rendered(document: dict) -> str:
    """All tables of a file that ``python -m benchmarks`` wrote."""
    models = dict.fromkeys(record["model"] for record in document["records"])
    tables = [markdown(model, ratios([r for r in document["records"] if r["model"] == model])) for model in models]
    return "\n".join(tables).strip()


def main() -> None:
    """Writes the tables into docs/speed.md, between their marks."""
    replace_between_marks(PAGE, "speed", rendered(json.loads(RESULTS.read_text())))
    replace_between_marks(PAGE, "targets", targets.markdown(json.loads(targets.RESULTS.read_text())))


def replace_between_marks(page: Path, mark: str, text: str) -> None:
    before, rest = page.read_text().split(f"<!-- {mark} -->")
    _, after = rest.split(f"<!-- /{mark} -->")
    temporary = page.with_suffix(".tmp")
    temporary.write_text(f"{before}<!-- {mark} -->\n{text}\n<!-- /{mark} -->{after}")
    os.replace(temporary, page)


if __name__ == "__main__":
    main()
