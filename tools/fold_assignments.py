"""How much a cell of Table 1 depends on which rows fell into which fold: the same training under other assignments.

    python -m pipeline.params select uci
    python -m tools.fold_assignments wine-mnvi   # goes on where it was stopped; starts anew if settings have changed

The table's ± is over initialisations alone, because every run has the same folds; how far the folds themselves move the
mean is what this tells. The first assignment is the study's own. Figures go to <results>/fold_assignments/<cell>.json.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline import files, params
from pipeline.data import load_table, splits
from pipeline.params import Cell
from pipeline.regression import folds, networks
from pipeline.regression.predictions import judge, log_likelihood


def measured(cell: Cell, seed: int, runs: int) -> dict[str, Any]:
    """Mean test log-likelihood of each run, the folds drawn with ``seed``."""
    table = load_table(cell.data)
    tests = [torch.tensor(rows) for rows in splits.kfold(len(table.y), len(table.tests), seed)]
    parts = folds.test_folds(table, tests)
    plan = networks.plan(cell, len(parts), runs)
    scores: dict[int, list[float]] = {}
    for one in judge(cell, plan, parts, networks.train(cell, plan, parts), log_likelihood):
        if one.scores:
            scores.setdefault(one.run, []).append(one.scores["log_likelihood"])
    values = [statistics.fmean(scores[run]) for run in sorted(scores)]
    return {"seed": seed, "runs": values, "mean": statistics.fmean(values)}


def fingerprint(cell: Cell, runs: int) -> list[str | int]:
    """What assignments must have in common to stand in one file: settings, data and number of runs."""
    return [cell.fingerprint("train"), load_table(cell.data).summary["digest"], runs]


def found(path: Path, made_for: list[str | int]) -> list[dict[str, Any]]:
    """Assignments that an earlier start left; those of other settings do not count."""
    if not path.exists():
        return []
    kept = files.read_json(path, "this command")
    if kept.get("made_for") == made_for:
        return list(kept["assignments"])
    print(f"{path} was made with other settings, data or --runs; starting anew", flush=True)
    return []


def summary(assignments: list[dict[str, Any]]) -> dict[str, Any]:
    means = [one["mean"] for one in assignments]
    return {"mean": statistics.fmean(means), "std": statistics.stdev(means) if len(means) > 1 else None}


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", help="of the selected study, e.g. wine-mnvi")
    parser.add_argument("--assignments", type=at_least_one, default=10)
    parser.add_argument("--runs", type=at_least_one, default=2)
    arguments = parser.parse_args(given)
    cell = params.load().cell(arguments.cell)
    path = Path(cell.study.results) / "fold_assignments" / f"{cell.name}.json"
    made_for = fingerprint(cell, arguments.runs)
    assignments = found(path, made_for)
    for seed in range(splits.SEED + len(assignments), splits.SEED + arguments.assignments):
        assignments.append(measured(cell, seed, arguments.runs))
        files.write_json(path, {**summary(assignments), "made_for": made_for, "assignments": assignments})
        print(f"{cell.name}, folds drawn with seed {seed}: {assignments[-1]['mean']:.3f}", flush=True)
    whole = summary(assignments)
    spread = "" if whole["std"] is None else f" ± {whole['std']:.3f}"
    print(f"{len(assignments)} assignments: {whole['mean']:.3f}{spread}")


if __name__ == "__main__":
    main()
