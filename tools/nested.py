"""Measures what a search that is not nested gains: the study's search of a table, beside a nested one.

    python -m pipeline.params select uci
    python -m tools.nested boston-mnvi

The study's search takes one point of the grid for all folds, the best on the validation rows of all folds. Validation
rows of one fold are test rows of another, so the choice has seen the test rows. A nested search chooses a point for
each fold, by validation rows of this fold alone. For each point of the grid this command trains every fold twice,
without its validation rows and with them, and keeps the log-likelihood of every network. Figures go to
<results>/nested/<cell>.json. The command resumes after an interruption, and starts over if settings have changed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import console, files, params
from pipeline.data.tablesets import load_table
from pipeline.errors import StudyError
from pipeline.params import Cell
from pipeline.regression import cell_networks, compiling, evaluation, folds
from pipeline.regression.folds import Fold
from pipeline.regression.predictions import judge, log_likelihood
from pipeline.report import nested
from pipeline.setting_types import Count, checked


def measured(cell: Cell, point: dict[str, Any], runs: int) -> dict[str, Any]:
    """The log-likelihoods [run][fold] of one point of the grid, on validation rows and on test rows."""
    began = time.process_time()
    cell = cell.with_hyperparameters(point)
    table, tests = folds.load(cell)
    targets = cell.experiment.targets
    few = min(runs, cell.runs_of_a_trial or runs)  # as many as a search trains
    scores = {
        "validation": _scores(cell, folds.validation_folds(table, tests, targets), few),
        "test": _scores(cell, folds.test_folds(table, tests, targets), runs),
    }
    return {"hyperparameters": point, **scores, "cpu_seconds": round(time.process_time() - began, 1)}


def _scores(cell: Cell, parts: list[Fold], runs: int) -> list[list[float | None]]:
    plan = cell_networks.plan(cell, len(parts), runs)
    trained = cell_networks.train(cell, plan, parts, compile=compiling.wanted(cell, parts, plan))
    return evaluation.by_run(judge(cell, plan, parts, trained, log_likelihood), "log_likelihood", runs, len(parts))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", help="a cell of the selected study, e.g. boston-mnvi")
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args(given)
    cell = params.load().cell(arguments.cell)
    runs = checked(Count, "--runs", arguments.runs)
    grid = cell.grid_points()
    if len(grid) < 2:
        raise StudyError(f"{cell.name}: its method has no grid, so there is nothing to choose; name another cell")
    path = nested.path_of(Path(cell.study.results), cell.name)
    made_for = [cell.fingerprint("train"), load_table(cell.data).summary["digest"], runs]
    kept = files.read_json(path, "this command") if path.exists() else {}
    if kept and kept.get("made_for") != made_for:
        print(f"{path} was made with other settings, data or --runs; starting over", flush=True)
    found = kept["points"] if kept.get("made_for") == made_for else []
    recipe = {key: getattr(cell.experiment, key) for point in grid for key in point if hasattr(cell.experiment, key)}
    study = {**recipe, **cell.hyperparameters}
    for point in grid:
        if not any(one["hyperparameters"] == point for one in found):
            found.append(measured(cell, point, runs))
            files.write_json(path, {"runs": runs, "made_for": made_for, "study": study, "points": found})
            print(f"{cell.name}: {point} in {found[-1]['cpu_seconds']:.0f} s", flush=True)
    complete = next(one for one in nested.found_nested(Path(cell.study.results)) if one.cell == cell.name)
    for way, (chosen, score) in nested.ways(complete).items():
        print(f"{way}: {nested.told(score)} ({chosen})")


if __name__ == "__main__":
    console.run(main)
