"""How much a cell of Table 1 depends on which rows fell into which fold: the same training under other assignments.

    python -m pipeline.params select uci
    python -m tools.fold_assignments wine-mnvi                  # goes on where it was stopped

The table's ± is over initialisations alone, because every run has the same folds; how far the folds themselves move the
mean is what this tells. The first assignment is the study's own. Figures go to <results>/fold_assignments/<cell>.json.
"""

from __future__ import annotations

import argparse
import statistics
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", help="of the selected study, e.g. wine-mnvi")
    parser.add_argument("--assignments", type=int, default=10)
    parser.add_argument("--runs", type=int, default=2)
    arguments = parser.parse_args()
    cell = params.load().cell(arguments.cell)
    path = Path(cell.study.results) / "fold_assignments" / f"{cell.name}.json"
    found = files.read_json(path, "this command")["assignments"] if path.exists() else []
    for seed in range(splits.SEED + len(found), splits.SEED + arguments.assignments):
        found.append(measured(cell, seed, arguments.runs))
        means = [one["mean"] for one in found]
        spread = statistics.stdev(means) if len(means) > 1 else None
        result = {"mean": statistics.fmean(means), "std": spread, "assignments": found}
        files.write_json(path, result)
        print(f"{cell.name}, folds drawn with seed {seed}: {found[-1]['mean']:.3f}", flush=True)
    print(f"{len(found)} assignments: {result['mean']:.3f} ± {result['std']:.3f}")


if __name__ == "__main__":
    main()
