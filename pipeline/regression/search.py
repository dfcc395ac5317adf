"""Chooses a regression cell's hyperparameters by the log-likelihood of rows held out from each training fold.

A trial trains all folds, a few runs each, with one point of the grid; Ray Tune runs as many trials at a time as there
are CPUs. The driver writes every finished trial to a file at once. Tune's own snapshots lag behind, so a search that
was killed is taken up from these files: Tune is given what they lack.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator

from pipeline import cluster, files, storage, tracking
from pipeline.console import Progress, progress
from pipeline.errors import StudyError
from pipeline.params import Cell
from pipeline.regression import folds, networks
from pipeline.regression.folds import Fold
from pipeline.regression.predictions import judge, log_likelihood
from pipeline.regression.training import number_of_runs

RUNS = 2  # per fold and trial
TOGETHER = 100  # networks at once within a trial

Point = dict[str, Any]
Trial = dict[str, Any]  # a record of trials.json


def run(cell: Cell) -> None:
    if not cell.searched:
        _write(cell, {"source": "params", "hyperparameters": cell.hyperparameters, "objective": None, "trials": 0}, [])
        return
    table, tests = folds.load(cell)
    parts = folds.validation_folds(table, tests)
    ledger = Ledger(cell.state("tune"), [cell.fingerprint("tune"), table.summary["digest"]])
    with tracking.run(cell, "tune", state=cell.state("tune")) as tracked:
        tracked.params({"searcher": cell.study.searcher, "epochs": short(cell).experiment.epochs, "folds": len(tests)})
        tracked.dataset(table.summary)
        _search(cell, parts, ledger, tracked)
        trials = ledger.trials()
        best = choose(trials, cell.grid_points())
        point = best["hyperparameters"]
        merged = cell.with_hyperparameters(point).hyperparameters
        chosen = {"source": "search", "hyperparameters": merged, "objective": best["objective"], "trials": len(trials)}
        _write(cell, chosen, trials)
        tracked.metrics({"nll": best["objective"]}, step=0)
        tracked.artifact(cell.tune / "best.yaml")
        tracked.artifact(cell.tune / "trials.json")


class Ledger:
    """The finished trials of a search, a file each; those of other settings or data are deleted."""

    def __init__(self, folder: Path, depends_on: Sequence[str]) -> None:
        self.folder = folder / "finished"
        self.children = folder / "children"
        mark = self.folder / "made_for.json"
        if mark.exists() and files.read_json(mark, "python -m pipeline.tune") != list(depends_on):
            files.remove(self.folder)
            files.remove(self.children)
        files.write_json(mark, list(depends_on))

    def add(self, trial: Trial) -> None:
        files.write_json(self.folder / f"trial-{name_of(trial['hyperparameters'])}.json", trial)

    def trials(self) -> list[Trial]:
        """In an order that does not depend on which trial ended first."""
        return [files.read_json(path, "python -m pipeline.tune") for path in sorted(self.folder.glob("trial-*.json"))]


def name_of(point: Point) -> str:
    return hashlib.sha256(json.dumps(point, sort_keys=True).encode()).hexdigest()[:10]


def points(cell: Cell) -> list[Point]:
    """What a search without a model of its own goes through."""
    grid = cell.grid_points()
    if cell.study.searcher == "random":
        return random.Random(0).sample(grid, min(cell.study.trials, len(grid)))
    return grid


def choose(trials: Sequence[Trial], grid: Sequence[Point]) -> Trial:
    """The lowest objective; among equals the point that comes first in the grid."""
    sound = [trial for trial in trials if trial["objective"] is not None]
    if not sound:
        raise StudyError(
            "search: in every trial a network's loss stopped being a number; lower learning_rate or clip in params.yaml"
        )
    return min(sound, key=lambda trial: (trial["objective"], grid.index(trial["hyperparameters"])))


def short(cell: Cell) -> Cell:
    """The cell as its trials run it: the whole schedule in fewer epochs, if the study says so."""
    return replace(cell, experiment=cell.experiment.shortened(cell.limits.search_epochs))


def objective(cell: Cell, parts: list[Fold]) -> float | None:
    """Mean negative log-likelihood of the rows held out; None if any network failed."""
    plan = networks.plan(cell, len(parts), min(RUNS, number_of_runs(cell)))
    size = TOGETHER - TOGETHER % networks.members(cell)
    values = []
    for start in range(0, len(plan), size):
        some = plan[start : start + size]
        trained = networks.train(cell, some, parts)
        for one in judge(cell, some, parts, trained, log_likelihood):
            if one.scores is None:
                return None
            values.append(-one.scores["log_likelihood"])
    return math.fsum(values) / len(values)


class _Recorder(tune.Callback):
    """Keeps every trial as it ends."""

    def __init__(self, cell: Cell, ledger: Ledger, tracked: tracking.Run, bar: Progress) -> None:
        self.cell, self.ledger, self.tracked, self.bar = cell, ledger, tracked, bar

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune writes a copy of its callbacks to disk, which nobody reads; a run cannot be copied

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        value, epochs = trial.last_result["nll"], short(self.cell).experiment.epochs
        record = {
            "hyperparameters": dict(trial.config),
            "objective": value if math.isfinite(value) else None,
            "epochs": epochs,
            "status": "finished" if math.isfinite(value) else "failed",
            "seconds": trial.last_result["seconds"],
        }
        self.ledger.add(record)
        name = name_of(record["hyperparameters"])
        with tracking.run(
            self.cell, "tune", child=name, parent=self.tracked, state=self.ledger.children / name
        ) as child:
            child.params({**record["hyperparameters"], "status": record["status"]})
            if math.isfinite(value):
                child.metrics({"nll": value, "seconds": record["seconds"]}, step=epochs)
        self.bar.advance(nll=value)


def _trial(point: Point, cell: Cell, parts: list[Fold]) -> None:
    torch.set_num_threads(1)
    began = time.time()
    value = objective(short(cell.with_hyperparameters(point)), parts)
    # Tune compares numbers alone: a failed trial is the worst there is.
    tune.report({"nll": math.inf if value is None else value, "seconds": time.time() - began})


def _search(cell: Cell, parts: list[Fold], ledger: Ledger, tracked: tracking.Run) -> None:
    known = ledger.trials()
    algorithm, left = _searcher(cell, known)
    if left == 0:
        return
    own = (storage.root() or Path.cwd()) / str(cell.state("tune") / "ray")
    storage.remove(own)
    with cluster.connected(), progress(f"tune {cell.name}", len(known) + left, "trials", len(known)) as bar:
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(_trial, cell=cell, parts=parts), {"cpu": 1}),
            param_space={name: tune.choice(values) for name, values in cell.grid.items()},
            tune_config=tune.TuneConfig(
                metric="nll",
                mode="min",
                search_alg=algorithm,
                num_samples=left,
                max_concurrent_trials=cluster.cpus(),
            ),
            run_config=tune.RunConfig(
                name=f"tune-{cell.name}",
                storage_path=str(own),
                verbose=0,
                callbacks=[_Recorder(cell, ledger, tracked, bar)],
            ),
        )
        errors = tuner.fit().errors
    if errors:
        raise errors[0]


def _searcher(cell: Cell, known: Sequence[Trial]) -> tuple[Any, int]:
    """What proposes points to Tune, and how many trials are left."""
    if cell.study.searcher == "optuna":
        return _optuna(known), max(0, cell.study.trials - len(known))
    finished = [trial["hyperparameters"] for trial in known]
    left = [point for point in points(cell) if point not in finished]
    return BasicVariantGenerator(points_to_evaluate=left), len(left)


def _optuna(known: Sequence[Trial]) -> Any:
    if importlib.util.find_spec("optuna") is None:
        raise StudyError("study.searcher: optuna is not installed; `pip install optuna`, or set it to grid or random")
    from ray.tune.search.optuna import OptunaSearch

    sound = [trial for trial in known if trial["objective"] is not None]
    return OptunaSearch(
        seed=0,
        points_to_evaluate=[trial["hyperparameters"] for trial in sound] or None,
        evaluated_rewards=[trial["objective"] for trial in sound] or None,
    )


def _write(cell: Cell, best: dict[str, Any], trials: list[Trial]) -> None:
    files.write_json(cell.tune / "trials.json", trials)
    files.write_yaml(cell.tune / "best.yaml", best)
