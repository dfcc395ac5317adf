"""Reads and checks the output of the other stages: one value per cell of the study."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import StudyError
from pipeline.files import read_json, read_yaml
from pipeline.params import Cell
from pipeline.report.searches import Search

CURVES = "curves.json"
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Score:
    """A metric's mean and deviation over the runs; None if not finite."""

    mean: float | None
    std: float | None


@dataclass(frozen=True)
class Scores:
    """A cell's scores.json. If its data are missing, ``missing`` says why, and there are no metrics."""

    cell: str
    kind: str
    data: str
    experiment: str
    network: str
    method: str
    complete: bool = False
    runs: int = 0
    folds: int | None = None
    rows: int | None = None  # of the table, if known
    deviation_over: str = "runs"
    failed: int = 0  # regression networks without a prediction; their runs do not count
    seconds: float | None = None
    num_parameters: int | None = None
    metrics: dict[str, Score] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)  # errors that a network should be below
    missing: str | None = None


@dataclass(frozen=True)
class Curved:
    """Scores with the curves that evaluation wrote beside them; there are none for tables."""

    scores: Scores
    curves: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """All results of a cell; only ``scores`` if its data are missing."""

    cell: Cell
    scores: Scores
    best: dict[str, Any] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)
    training: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # one curve per seed, or one for all
    curves: dict[str, Any] = field(default_factory=dict)
    extremes: Path | None = None


class Record:
    """A mapping read from a file; ``get`` checks the presence and type of a key."""

    def __init__(self, path: Path, made_by: str, value: Any) -> None:
        self.path, self.made_by, self.value = path, made_by, value
        if not isinstance(value, dict):
            raise self.broken(f"expected a mapping, got {type(value).__name__}")

    def broken(self, why: str) -> StudyError:
        return StudyError(f"{self.path}: {why}; delete it and run `{self.made_by}` again")

    def get(self, key: str, *kinds: type) -> Any:
        """The value of a required key; ``type(None)`` among the kinds allows null and absence."""
        if key not in self.value and type(None) not in kinds:
            raise self.broken(f"`{key}` is missing")
        value = self.value.get(key)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.broken(f"`{key}` is {value!r}, expected {' or '.join(kind.__name__ for kind in kinds)}")
        return value


def read_scores(path: Path) -> Scores:
    """A cell's scores; the folder's name is the cell's."""
    cell = path.parent.name
    made_by = f"python -m pipeline.evaluate {cell}"
    record = Record(path, made_by, read_json(path, made_by))
    names = {key: record.get(key, str) for key in ("kind", "data", "experiment", "network", "method")}
    if names["kind"] not in ("regression", "classification"):
        raise record.broken(f"`kind` is {names['kind']!r}, expected regression or classification")
    missing = record.get("missing", str, type(None))
    if missing is not None:
        return Scores(cell, **names, missing=missing)
    return Scores(
        cell,
        **names,
        complete=record.get("complete", bool),
        runs=record.get("runs", int),
        folds=record.get("folds", int, type(None)),
        rows=record.get("rows", int, type(None)),
        deviation_over=record.get("deviation_over", str, type(None)) or "runs",
        failed=len(record.get("failed", list, type(None)) or ()),
        seconds=record.get("seconds", int, float, type(None)),
        num_parameters=record.get("num_parameters", int, type(None)),
        metrics=_metrics(record),
        baselines=record.get("baselines", dict, type(None)) or {},
    )


def _metrics(record: Record) -> dict[str, Score]:
    metrics = {}
    for name, value in record.get("metrics", dict).items():
        inner = Record(record.path, record.made_by, value)
        mean, std = (inner.get(key, int, float, type(None)) for key in ("mean", "std"))
        metrics[name] = Score(_finite(mean), _finite(std))
    if not metrics:
        raise record.broken("`metrics` is empty")
    return metrics


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def found_scores(root: Path) -> list[Scores]:
    """The scores of every cell below a results folder, whatever study it belongs to."""
    return [read_scores(path) for path in sorted(root.glob("evaluate/*/scores.json"))]


def found_curves(root: Path) -> list[Curved]:
    """The curves of every cell of images below a results folder whose evaluation kept them."""
    paths = sorted(root.glob(f"evaluate/*/plots/{CURVES}"))
    return [Curved(read_scores(path.parent.parent / "scores.json"), _curves(path)) for path in paths]


def found_searches(root: Path) -> list[Search]:
    """The searches of all cells below a results folder that searched their hyperparameters."""
    found = []
    for path in sorted(root.glob("tune/*/best.yaml")):
        made_by = f"python -m pipeline.tune {path.parent.name}"
        best = Record(path, made_by, read_yaml(path, made_by))
        if best.get("source", str) == "search":
            trials = _trials(path.parent / "trials.json", made_by)
            found.append(Search(path.parent.name, trials, best.get("hyperparameters", dict)))
    return found


def read_result(cell: Cell) -> Result:
    scores = read_scores(cell.evaluate / "scores.json")
    if scores.missing is not None:
        return Result(cell, scores)
    tune, train = (f"python -m pipeline.{stage} {cell.name}" for stage in ("tune", "train"))
    best = Record(cell.tune / "best.yaml", tune, read_yaml(cell.tune / "best.yaml", tune))
    source, _ = best.get("source", str), best.get("hyperparameters", dict)
    training = Record(cell.model / "training.json", train, read_json(cell.model / "training.json", train))
    images = cell.kind == "classification"
    return Result(
        cell,
        scores,
        best=best.value,
        trials=_trials(cell.tune / "trials.json", tune) if source == "search" else [],
        training=training.value,
        history=_seed_histories(cell, training) if images else _history(training),
        curves=_curves(cell.plots / CURVES) if images else {},
        extremes=_extremes(cell) if images else None,
    )


def _trials(path: Path, made_by: str) -> list[dict[str, Any]]:
    trials = [Record(path, made_by, trial) for trial in _list(path, made_by)]
    return [
        {
            "hyperparameters": trial.get("hyperparameters", dict),
            "objective": _finite(trial.get("objective", int, float, type(None))),
            "epochs": trial.get("epochs", int),
        }
        for trial in trials
    ]


def _list(path: Path, made_by: str) -> list[Any]:
    value = read_json(path, made_by)
    if not isinstance(value, list):
        raise StudyError(f"{path}: expected a list, got {type(value).__name__}; run `{made_by}` again")
    return value


def _history(training: Record) -> dict[str, list[dict[str, Any]]]:
    history = training.get("history", list, type(None))
    return {"all": _epochs(training.path, training.made_by, history)} if history else {}


def _seed_histories(cell: Cell, training: Record) -> dict[str, list[dict[str, Any]]]:
    names = [f"seed-{seed}" for seed in range(training.get("seeds", int))]
    paths = {name: cell.model / name / "history.json" for name in names}
    made_by = training.made_by
    return {name: _epochs(path, made_by, _list(path, made_by)) for name, path in paths.items()}


def _epochs(path: Path, made_by: str, history: list[Any]) -> list[dict[str, Any]]:
    epochs = [Record(path, made_by, epoch) for epoch in history]
    return [{**epoch.value, "epoch": epoch.get("epoch", int)} for epoch in epochs]


def _curves(path: Path) -> dict[str, Any]:
    made_by = f"python -m pipeline.evaluate {path.parent.parent.name}"
    curves = Record(path, made_by, read_json(path, made_by))
    for name, keys in {"reliability": ("confidence", "accuracy"), "rejection": ("rate", "misclassification")}.items():
        curve = Record(path, made_by, curves.get(name, dict))
        if len({len(curve.get(key, list)) for key in keys}) != 1:
            raise curves.broken(f"the lists of `{name}` differ in length")
    for kind, value in curves.get("uncertainty", dict).items():
        histogram = Record(path, made_by, value)
        bins = len(histogram.get("edges", list)) - 1
        if any(len(histogram.get(group, list)) != bins for group in ("correct", "wrong", "ood")):
            raise curves.broken(f"`uncertainty.{kind}` does not have a count for each of its bins")
    for metric, kinds in (curves.get("severity", dict) if "severity" in curves.value else {}).items():
        if len({len(values) for values in kinds.values()}) != 1:
            raise curves.broken(f"the lists of `severity.{metric}` differ in length")
    return dict(curves.value)


def _extremes(cell: Cell) -> Path:
    path, made_by = cell.plots / "extremes.png", f"python -m pipeline.evaluate {cell.name}"
    try:
        start = path.read_bytes()[: len(PNG)]
    except FileNotFoundError as error:
        raise StudyError(f"{path}: no such file; it is made by `{made_by}`") from error
    if start != PNG:
        raise StudyError(f"{path}: not a PNG picture; delete it and run `{made_by}` again")
    return path
