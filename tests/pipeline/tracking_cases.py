"""Cells to track, and what the store of MLflow in the working folder says afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.tracking import identity, store
from pipeline.tracking.spool import Spool


@dataclass(frozen=True)
class Experiment:
    name: str = "toy"
    network: str = "mlp"
    hidden: int = 5
    stem: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    experiment: Experiment = Experiment()
    method: str = "mnvi"
    kind: str = "regression"
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    method_arguments: dict[str, Any] = field(default_factory=dict)


def client() -> Any:
    return store.client(store.address())


def best_model(name: str) -> Any:
    """The registered model that has the alias, as MLflow loads it."""
    import mlflow

    return mlflow.pyfunc.load_model(client().get_model_version_by_alias(name, "best").source)


def leave_unsent(*folders: Path) -> None:
    """Journals as they are while the server is away."""
    for folder in folders:
        identity.claim(folder, "toy", "tune mnvi", None)
        Spool(folder).append([{"kind": "metric", "key": "loss", "value": 1.0, "step": 0, "time": 1}])


def runs(experiment: str = "toy") -> list[Any]:
    """All runs of an experiment, the oldest first."""
    found = client().get_experiment_by_name(experiment)
    return [] if found is None else list(client().search_runs([found.experiment_id], order_by=["start_time"]))


def history(run_id: str | None, key: str) -> list[tuple[int, float]]:
    return sorted((metric.step, metric.value) for metric in client().get_metric_history(run_id, key))
