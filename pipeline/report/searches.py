"""A search as a grid: the result of each combination of the two settings that matter most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LABELS = {"kappa_over_n": "κ/N", "prior_variance": "prior variance"}
FIRST = list(LABELS)


@dataclass(frozen=True)
class Search:
    """A cell's trials and the hyperparameters chosen from them."""

    cell: str
    trials: Sequence[dict[str, Any]]
    chosen: dict[str, Any]

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The values of at most two varied settings; in a larger grid, each point stands for its best trial."""
        names = {name for trial in self.trials for name in trial["hyperparameters"]}
        ordered = sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
        varied = {name: values for name in ordered if len(values := self.values(name)) > 1}
        return dict(list(varied.items())[:2])

    def values(self, name: str) -> list[Any]:
        return sorted({trial["hyperparameters"][name] for trial in self.trials if name in trial["hyperparameters"]})

    def best_at(self, place: dict[str, Any]) -> dict[str, Any] | None:
        """The trial with the lowest objective at a point; any one if all failed, None if there is none."""
        here = [
            trial
            for trial in self.trials
            if all(trial["hyperparameters"].get(name) == value for name, value in place.items())
        ]
        return min(here, key=lambda trial: objective(trial), default=None)


def objective(trial: dict[str, Any]) -> float:
    """A trial's objective; infinite if it failed."""
    return math.inf if trial["objective"] is None else float(trial["objective"])


def label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def told(trial: dict[str, Any] | None) -> str:
    """The text of a place in the grid."""
    if trial is None:
        return "not tried"
    return "failed" if trial["objective"] is None else f"{trial['objective']:.4g}"
