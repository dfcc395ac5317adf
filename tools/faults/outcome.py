"""The outcome of a study, for comparing two studies: its numbers, its weights, its runs in MLflow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mlflow import MlflowClient

from pipeline import files

TIMES = (
    "seconds",
    "per_second",
    "waiting",
    "workers",
    "chunks",
    "inference_ms",
)  # keys with these words depend on the machine
SYSTEM = "system/"  # metrics recorded every ten seconds while a stage runs
MADE_BY = "python -m tools.faults"
NUMBERS = ("tune/*/best.yaml", "tune/*/trials.json", "models/**/*.json", "evaluate/*/*.json")

History = list[tuple[int, float]]


@dataclass(frozen=True)
class Run:
    status: str
    params: dict[str, str]
    histories: dict[str, History]
    models: int


@dataclass(frozen=True)
class Outcome:
    numbers: dict[str, Any]  # by file
    weights: dict[str, Any]  # by file
    runs: dict[tuple[str, ...], list[Run]]  # by experiment, parent's name and own name
    versions: dict[str, int]  # of registered models


def of(study: Path, address: str) -> Outcome:
    results, client = study / "results", MlflowClient(address)
    numbers = {
        str(path.relative_to(results)): _timeless(_read(path))
        for pattern in NUMBERS
        for path in sorted(results.glob(pattern))
    }
    weights = {
        str(path.relative_to(results)): _timeless(files.read_tensors(path, MADE_BY))
        for path in sorted(results.glob("models/**/*.pt"))
    }
    versions = {
        model.name: len(client.search_model_versions(f"name='{model.name}'"))
        for model in client.search_registered_models()
    }
    return Outcome(numbers, weights, _runs(client), versions)


def differences(expected: Outcome, found: Outcome) -> dict[str, list[str]]:
    """The problems that each check found, by its name; an empty list if there are none."""
    runs = {name: runs[-1] for name, runs in found.runs.items()}
    return {
        "numbers": _unequal(expected.numbers, found.numbers),
        "weights": _unequal(expected.weights, found.weights),
        "runs": _duplicates(found) + _unequal(dict.fromkeys(expected.runs), dict.fromkeys(found.runs)),
        "params": [
            f"{' / '.join(name)}: {line}"
            for name in expected.runs.keys() & runs.keys()
            for line in _unequal(expected.runs[name][-1].params, runs[name].params)
        ],
        "metrics": [
            f"{' / '.join(name)}: {line}"
            for name in expected.runs.keys() & runs.keys()
            for line in _metric_differences(expected.runs[name][-1].histories, runs[name].histories)
        ],
        "states": [f"{' / '.join(name)}: {run.status}" for name, run in runs.items() if run.status != "FINISHED"],
        "models": _unequal(expected.versions, found.versions)
        + [
            f"{' / '.join(name)}: {runs[name].models} models"
            for name in expected.runs.keys() & runs.keys()
            if runs[name].models != expected.runs[name][-1].models
        ],
    }


def _read(path: Path) -> Any:
    return files.read_yaml(path, MADE_BY) if path.suffix == ".yaml" else files.read_json(path, MADE_BY)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(one) for key, one in value.items() if not _is_time(key)}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def _is_time(key: Any) -> bool:
    return any(word in str(key) for word in TIMES)


def _runs(client: MlflowClient) -> dict[tuple[str, ...], list[Run]]:
    found: dict[tuple[str, ...], list[Run]] = {}
    for experiment in client.search_experiments():
        all_of_it = client.search_runs([experiment.experiment_id], max_results=1000)
        names = {run.info.run_id: run.info.run_name for run in all_of_it}
        models = [model.source_run_id for model in client.search_logged_models([experiment.experiment_id])]
        for run in all_of_it:
            parent = run.data.tags.get("mlflow.parentRunId")
            name = (experiment.name, *([names[parent]] if parent else []), run.info.run_name)
            histories = {
                key: sorted((one.step, one.value) for one in client.get_metric_history(run.info.run_id, key))
                for key in run.data.metrics
            }
            one = Run(run.info.status, dict(run.data.params), histories, models.count(run.info.run_id))
            found.setdefault(name, []).append(one)
    return found


def _duplicates(found: Outcome) -> list[str]:
    return [f"{' / '.join(name)}: {len(runs)} runs" for name, runs in found.runs.items() if len(runs) > 1]


def _metric_differences(expected: dict[str, History], found: dict[str, History]) -> list[str]:
    lines = []
    for key, history in found.items():
        steps = [step for step, _ in history]
        if len(set(steps)) < len(steps):
            lines.append(f"{key}: a step appears twice")
    for key, history in expected.items():
        if key.startswith(SYSTEM):
            continue
        there = found.get(key, [])
        if [step for step, _ in there] != [step for step, _ in history]:
            lines.append(f"{key}: {len(there)} steps instead of {len(history)}")
        elif not _is_time(key) and there != history:
            lines.append(f"{key}: other values")
    return lines + [f"{key}: unexpected" for key in found if key not in expected and not key.startswith(SYSTEM)]


def _unequal(expected: dict[Any, Any], found: dict[Any, Any]) -> list[str]:
    lines = [f"{_name(key)}: missing" for key in expected if key not in found]
    lines += [f"{_name(key)}: unexpected" for key in found if key not in expected]
    return lines + [
        f"{_name(key)}: differs" for key in expected if key in found and not _same(expected[key], found[key])
    ]


def _name(key: Any) -> str:
    return " / ".join(key) if isinstance(key, tuple) else str(key)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the last bit."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)
