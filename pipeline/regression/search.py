"""Chooses a regression cell's hyperparameters by the log-likelihood of rows held out from each training fold.

A trial trains all folds, a few runs each, with one point of the grid; Ray Tune runs as many trials at a time as there
are CPUs. The driver writes every finished trial to a file at once. Tune's own snapshots lag behind, so a search
resumes from these files after a kill: Tune gets only the trials that they lack.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from ray import tune

from pipeline import cluster, files, searching, state, storage, tracking
from pipeline.console import progress
from pipeline.params import Cell
from pipeline.regression import cell_networks, compiling, folds
from pipeline.regression.cell_networks import Replica
from pipeline.regression.folds import Fold
from pipeline.regression.predictions import judge, log_likelihood
from pipeline.searching import MADE_BY, Point, Trial, name_of, short

TOGETHER = 100  # networks that a trial trains at once


def run(cell: Cell) -> None:
    table, tests = folds.load(cell)
    parts = folds.validation_folds(table, tests, cell.experiment.targets)
    compiled = compiling.wanted(short(cell), parts, _plan(cell, parts))
    ledger = Ledger.of(cell, parts, compiled)
    depends_on = [cell.fingerprint("tune"), folds.digest(parts), compiled]
    with tracking.run(cell, "tune", state=cell.state("tune"), depends_on=depends_on) as tracked:
        tracked.params({**searching.parameters(cell), "folds": len(tests)})
        tracked.dataset(table.summary)
        _search(cell, parts, compiled, ledger, tracked)
        searching.conclude(cell, ledger.trials(), tracked, "nll")


class Ledger:
    """The finished trials of a search, one file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, cell: Cell, parts: list[Fold], compiled: bool) -> Ledger:
        made_for = {**cell.made_for("tune"), "data": folds.digest(parts), "compiled": compiled}
        folder = state.progress(cell.state("tune"), cell, "tune", made_for)
        assert isinstance(folder, Path)  # the driver keeps the trials
        return cls(folder)

    def add(self, trial: Trial) -> None:
        files.write_json(self.folder / f"trial-{name_of(trial['hyperparameters'])}.json", trial)

    def trials(self) -> list[Trial]:
        """The trials, in an order that does not depend on which one ended first."""
        return [files.read_json(path, MADE_BY) for path in sorted(self.folder.glob("trial-*.json"))]


def _plan(cell: Cell, parts: list[Fold]) -> list[Replica]:
    assert cell.runs_of_a_trial is not None  # reading params.yaml requires runs
    return cell_networks.plan(cell, len(parts), cell.runs_of_a_trial)


def objective(cell: Cell, parts: list[Fold], compiled: bool = False) -> float | None:
    """Mean negative log-likelihood of the held-out rows; None if any network failed."""
    plan = _plan(cell, parts)
    size = max(TOGETHER - TOGETHER % cell_networks.members(cell), cell_networks.members(cell))
    values = []
    for start in range(0, len(plan), size):
        some = plan[start : start + size]
        trained = cell_networks.train(cell, some, parts, compile=compiled)
        for one in judge(cell, some, parts, trained, log_likelihood):
            if one.scores is None:
                return None
            values.append(-one.scores["log_likelihood"])
    return math.fsum(values) / len(values)


def _trial(point: Point, cell: Cell, parts: list[Fold], compiled: bool) -> None:
    torch.set_num_threads(1)
    began = time.time()
    value = objective(short(cell.with_hyperparameters(point)), parts, compiled)
    # Tune compares numbers only, so a failed trial gets the worst one.
    tune.report({"nll": math.inf if value is None else value, "seconds": time.time() - began})


def _search(cell: Cell, parts: list[Fold], compiled: bool, ledger: Ledger, tracked: tracking.Run) -> None:
    known = ledger.trials()
    for record in known:
        searching.track(cell, record, _figures(record), tracked)  # a repeated search has a new run
    proposals = searching.proposer(cell, known)
    if proposals[1] == 0:
        return
    own = (storage.root() or Path.cwd()) / str(cell.state("tune") / "ray")
    storage.remove(own)
    records = list(known)
    with cluster.connected(), progress(f"tune {cell.name}", len(known) + proposals[1], "trials", len(known)) as bar:

        def keep(point: Point, result: dict[str, Any]) -> None:
            record = _record(cell, point, result)
            searching.track(cell, record, _figures(record), tracked)
            ledger.add(record)
            records.append(record)
            bar.advance(best=searching.lowest(records))

        searching.go_through(
            cell,
            tune.with_resources(tune.with_parameters(_trial, cell=cell, parts=parts, compiled=compiled), {"cpu": 1}),
            proposals,
            keep,
            storage=str(own),
            metric="nll",
            max_concurrent_trials=cluster.cpus(),
        )


def _record(cell: Cell, point: Point, result: dict[str, Any]) -> Trial:
    value = result["nll"]
    return {
        "hyperparameters": point,
        "objective": value if math.isfinite(value) else None,
        "epochs": short(cell).experiment.epochs,
        "status": "finished" if math.isfinite(value) else "failed",
        "seconds": result["seconds"],
    }


def _figures(trial: Trial) -> list[tuple[int, dict[str, float]]]:
    if trial["objective"] is None:
        return []
    return [(trial["epochs"], {"nll": trial["objective"], "seconds": trial["seconds"]})]
