"""A card for each registered model: its data, its metrics beside the paper's, its limits, how to call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.masking import masked
from pipeline.report import labels
from pipeline.report.results import Result
from pipeline.report.tables import Record
from pipeline.tracking.registered import name_of

ANSWERS = {
    "regression": "`mean`, `std`, and the `aleatoric` and `epistemic` standard deviations, in the unit of the targets",
    "classification": "`probs`, `label`, `entropy` and its parts `aleatoric` and `epistemic`, in nats",
}
TAKES = {
    "regression": "rows of the features above, in their own units, matched by name if they have names",
    "classification": "pixels from 0 to 255, [batch, channels, height, width]",
}
FEATURES = 20  # named in a card; wider tables have more


def _runs(number: int) -> str:
    return "One run" if number == 1 else f"Mean ± standard deviation over {number} runs"


def card(result: Result, records: Sequence[Record], data: dict[str, Any]) -> str:
    """The card as Markdown.

    Args:
        records: of the study's tables; those of this cell are shown.
        data: the summary of its data.
    """
    cell, scores = result.cell, result.scores
    model = name_of(result.cell)
    network, method = labels.network_label(scores.network), labels.method_label(scores.method)
    return "\n".join(
        [
            f"# {model}",
            "",
            f"{network} trained with {method} on {labels.data_label(scores.data)}, cell `{cell.name}` of the study "
            f"`{cell.study.name}`.",
            "",
            "## Data",
            "",
            *_data(data),
            "",
            "## Metrics",
            "",
            *_metrics([record for record in records if record.cell == scores.cell]),
            "",
            f"{_runs(scores.runs)}. Plots: `{cell.study.results}/report/index.html`, also an artifact of the run "
            "`report`.",
            "",
            "## Limits",
            "",
            *(f"- {line}" for line in _limits(result)),
            "",
            "## How to call it",
            "",
            f"    python -m pipeline.predict {cell.name} INPUT",
            f"    python -m pipeline.serve {cell.name}",
            f'    mlflow.pyfunc.load_model("models:/{model}@best").predict(inputs)',
            "",
            f"It takes {TAKES[cell.kind]}. It answers with {ANSWERS[cell.kind]}.",
            "",
        ]
    )


def _data(data: dict[str, Any]) -> list[str]:
    lines = [f"- source: {masked(str(data.get('source', 'unknown')))}", f"- SHA-256: `{data.get('digest', 'unknown')}`"]
    if "rows" in data:
        rows = data["rows"]
        said = ", ".join(f"{count} {part}" for part, count in rows.items()) if isinstance(rows, dict) else rows
        lines.append(f"- rows: {said}")
    if classes := data.get("classes"):
        lines.append(f"- classes: {len(classes)}, from {classes[0]} to {classes[-1]}")
    if columns := data.get("columns"):
        more = f" and {len(columns) - FEATURES} more" if len(columns) > FEATURES else ""
        lines.append(f"- features: {', '.join(map(str, columns[:FEATURES]))}{more}")
    return lines


def _metrics(records: Sequence[Record]) -> list[str]:
    lines = ["| metric | here | the paper | |", "| --- | --- | --- | --- |"]
    for record in records:
        power = labels.exponent(record.data, record.metric)
        printed = "" if record.paper is None else record.paper.text
        heading = labels.label(record.data, record.metric)
        lines.append(f"| {heading} | {_value(record, power)} | {printed} | {'; '.join(record.notes)} |")
    return lines


def _value(record: Record, power: int) -> str:
    if record.mean is None:
        return "–"
    spread = "" if record.std is None else f" ± {record.std * 10**power:.2g}"
    return f"{record.mean * 10**power:.4g}{spread}"


def _limits(result: Result) -> list[str]:
    cell = result.cell
    lines = ["The metrics hold for data like the test data; for other data an answer can be sure and wrong."]
    if not result.scores.complete:
        lines.insert(0, "The study's limits shortened the training: the figures are not those of the whole recipe.")
    if cell.kind == "regression":
        lines.append("The study trains many networks; this is the one of the first fold and run, not the best.")
    if result.scores.failed:
        lines.append(f"{result.scores.failed} networks failed; their runs are left out of the metrics.")
    return lines
