"""Turns records into tables, and writes them into docs/speed.md."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import targets
from benchmarks.subjects import BOTH, MODELS, MODES

RESULTS = Path(__file__).parent / "results" / "bench.json"
PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
BUSY = 0.1  # share of the machine in use by other processes from which on a figure is marked
LABELS = {
    "deterministic": "deterministic",
    "mnvi": "MNVI, exact",
    "mnvi_factored": "MNVI, factored",
    "mfvi": "MFVI",
    "smfvi": "shared MFVI",
    "mc_dropout": "MC Dropout (8)",
    "ensemble": "ensemble (5)",
    "fastbnns": "fastbnns",
    "bayesian_torch": "bayesian-torch (8)",
    "torch_uncertainty": "torch-uncertainty (8)",
    "laplace": "laplace-torch",
}
Record = dict[str, Any]


def key_of(record: Record) -> tuple[str, ...]:
    return tuple(record[name] for name in ("model", "method", "mode", "quantity"))


def same(records: Iterable[Record], **wanted: str) -> list[Record]:
    return [record for record in records if wanted.items() <= record.items()]


def best_mode(records: Iterable[Record], model: str, quantity: str) -> str:
    """The mode in which the deterministic network is fastest."""
    found = same(records, model=model, method="deterministic", quantity=quantity)
    sound = [record for record in found if "figure" in record]
    if not sound:
        raise SystemExit(f"{model}, {quantity}: the deterministic network failed: {[r.get('why') for r in found]}")
    return str(min(sound, key=lambda record: record["figure"])["mode"])


def markdown(model: str, records: list[Record]) -> str:
    """A row for each method and mode of a model. Ratios are to the best deterministic network."""
    here = same(records, model=model)
    usual = here[0]
    clock = "CPU time on one thread" if usual["clock"] == "cpu" else f"{usual['threads']} threads"
    about = f"batch {usual['batch']}, {clock}, torch {usual['versions']['torch']}"
    lines = [
        f"### {model}\n",
        f"{about[0].upper()}{about[1:]}.\n",
        "| method | mode | inference | training step | memory kept for backward | parameters |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    reasons: list[str] = []
    for method, label in LABELS.items():
        for mode in MODES if method == "deterministic" else BOTH:
            rows = {record["quantity"]: record for record in same(here, method=method, mode=mode)}
            cells = [_time(rows.get(quantity), reasons) for quantity in ("inference", "training")]
            cells.append(_memory(rows.get("memory"), here, reasons))
            sizes = [record["parameters"] for record in rows.values() if "parameters" in record]
            cells.append(f"{sizes[0]:,}" if sizes else "–")
            lines.append(f"| {label} | {mode} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _failed(record: Record | None, reasons: list[str]) -> str | None:
    """What to show instead of a figure; None if there is one."""
    if record is None:
        return "not run"
    if "why" not in record:
        return None
    if record["why"] not in reasons:
        reasons.append(record["why"])
    return f"failed: {reasons.index(record['why']) + 1}"


def _time(record: Record | None, reasons: list[str]) -> str:
    if (failed := _failed(record, reasons)) or record is None:
        return failed or ""
    doubt = "~" if (record.get("others") or 0) > BUSY else ""
    return f"{doubt}{record['ratio']:.2f} ({record['low']:.2f}–{record['high']:.2f}; {record['figure']:.3g} ms)"


def _memory(record: Record | None, here: list[Record], reasons: list[str]) -> str:
    if (failed := _failed(record, reasons)) or record is None:
        return failed or ""
    plain = same(here, method="deterministic", quantity="memory")
    least = min((other["figure"] for other in plain if "figure" in other), default=None)
    ratio = "" if least is None else f"{record['figure'] / least:.2f} "
    return f"{ratio}({record['figure'] / 2**20:.3g} MiB)"


def rendered(document: dict) -> str:
    """All tables of a file that ``python -m benchmarks`` wrote; a model without figures says so."""
    records = document["records"]
    tables = [
        markdown(model, records) if same(records, model=model) else f"### {model}\n\nNot run." for model in MODELS
    ]
    return "\n\n".join(tables)


def main() -> None:
    """Writes the tables into docs/speed.md, between their marks."""
    replace_between_marks(PAGE, "bench", rendered(json.loads(RESULTS.read_text())))
    replace_between_marks(PAGE, "targets", targets.markdown(json.loads(targets.RESULTS.read_text())))


def replace_between_marks(page: Path, mark: str, text: str) -> None:
    before, rest = page.read_text().split(f"<!-- {mark} -->")
    _, after = rest.split(f"<!-- /{mark} -->")
    temporary = page.with_suffix(".tmp")
    temporary.write_text(f"{before}<!-- {mark} -->\n{text}\n<!-- /{mark} -->{after}")
    os.replace(temporary, page)


if __name__ == "__main__":
    main()
