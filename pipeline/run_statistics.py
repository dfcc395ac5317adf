"""Mean and standard deviation over the runs of a cell."""

from __future__ import annotations

import statistics
from typing import Any


def over_runs(values: list[float]) -> dict[str, Any]:
    """Mean and sample deviation. No runs have no mean, and a single run has no deviation: None."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
    }


def flat(metrics: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Means as `name`, deviations as `name_std`; what does not exist is left out.

    Args:
        metrics: what `over_runs` gives, by the name of the metric.
    """
    found: dict[str, float | None] = {}
    for name, summary in metrics.items():
        found |= {name: summary["mean"], f"{name}_std": summary["std"]}
    return {name: number for name, number in found.items() if number is not None}
