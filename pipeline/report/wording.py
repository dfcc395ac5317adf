"""The texts of figures, for the page and for Markdown."""

from __future__ import annotations

import math
from decimal import Decimal

from pipeline.report import labels
from pipeline.report.tables import (
    NOT_FINITE_TEXT,
    NOT_IN_PAPER_TEXT,
    NOT_RUN_TEXT,
    NOT_TO_THE_END_TEXT,
    OTHER_MACHINE_TEXT,
    Record,
)

MARKS = {"reproduced": "✓", "differs": "✗", "told": "", "unfinished": "…", "not-run": "–"}
TABLE_2 = (
    "Lower is better for all metrics of the paper, higher for AUROC. Inference times, the shortest of "
    "several, are those of this study's machine and are not compared: the paper's are a GTX 1080 Ti's."
)
MEANINGS = {
    "reproduced": "reproduced: within two combined standard deviations of the paper's figure, or better",
    "differs": "not reproduced",
    "unfinished": "not run to the end here, so not judged",
    "not-run": "not run here",
}


def number(value: float, decimals: int) -> str:
    """A number with a real minus sign; counts have their digits in groups of three."""
    text = f"{value:,.0f}" if decimals == 0 else f"{value:.{decimals}f}"
    return text.replace("-", "−")


def ours(record: Record) -> str:
    """Our mean ± standard deviation in the table's unit; a single run has no ±."""
    if not record.ran:
        return NOT_RUN_TEXT
    if record.mean is None:
        return "no complete run" if record.failed else "not finite"
    scale = 10 ** labels.exponent(record.data, record.metric)
    decimals = _decimals(record)
    mean = number(record.mean * scale, decimals)
    if record.std is None or record.metric == "parameters":
        return mean
    return f"{mean} ± {number(record.std * scale, decimals)}"


def _decimals(record: Record) -> int:
    own = labels.metric(record.metric).decimals
    if record.paper is None or record.metric == "parameters":
        return own
    return max(record.paper.decimals, own) if record.metric == "log_likelihood" else record.paper.decimals


def theirs(record: Record) -> str:
    """The paper's figure as printed, corrected where it was misprinted."""
    if record.paper is None:
        return ""
    if record.metric != "parameters":
        return record.paper.text.replace("-", "−")
    if record.paper.corrected:
        return number(record.paper.mean, 0)
    return f"{record.paper.text}e6"


def remark(record: Record) -> str:
    """The notes, without those that the figure, its mark or the table's legend already show."""
    shown = (NOT_RUN_TEXT, NOT_TO_THE_END_TEXT, NOT_FINITE_TEXT, NOT_IN_PAPER_TEXT, OTHER_MACHINE_TEXT)
    parts = [part for part in record.notes if part not in shown]
    return "; ".join(part.removeprefix(f"{NOT_RUN_TEXT}: ") for part in parts)


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def setting(value: object) -> str:
    """A hyperparameter: 2e-07 rather than 0.0000002, 10 rather than 10.0."""
    if isinstance(value, float) and math.isfinite(value):
        if value == int(value) and abs(value) < 1e6:
            return str(int(value))
        return f"{value:.6g}" if 1e-3 <= abs(value) < 1e6 else f"{Decimal(repr(value)).normalize():e}"
    return str(value)
