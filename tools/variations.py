"""Measures what a cell of Table 1 depends on: repeats its training with one setting changed at a time.

    python -m pipeline.params select uci
    python -m tools.variations wine-mnvi epochs=50,100 batch_size=64,256 prior_variance=1,100 folds=2,3 kappa=0.1,1

`epochs` shortens the whole schedule, `folds` draws another assignment of rows to folds (the study's own has seed 1),
`kappa` is the same in every epoch, `targets` are raw or standardised, and everything else is a hyperparameter of the
method. The study's own setting comes first. Each line has the test log-likelihood and the share of targets in 95 %
intervals. Figures go to <results>/variations/<cell>.json. The command resumes after an interruption, and starts over if
settings have changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch

from pipeline import console, files, params
from pipeline.data import splits
from pipeline.data.tablesets import load_table
from pipeline.errors import StudyError
from pipeline.names import unknown
from pipeline.params import Cell
from pipeline.params.method_settings import hyperparameters
from pipeline.params.settings import TARGETS
from pipeline.regression import cell_networks, compiling, evaluation, folds
from pipeline.regression.predictions import judge
from pipeline.setting_types import Count, Index, NotNegative, checked
from pipeline.setting_types import known as one_of

Variation = dict[str, Any]


def measured(cell: Cell, variation: Variation, runs: int) -> dict[str, Any]:
    """The test log-likelihood, mean and deviation over runs as in the table, and what 95 % intervals hold."""
    varied, seed = _varied(cell, variation)
    table = load_table(cell.data)
    tests = [torch.tensor(rows) for rows in splits.kfold(len(table.y), len(table.tests), seed)]
    parts = folds.test_folds(table, tests, varied.experiment.targets)
    plan = cell_networks.plan(varied, len(parts), runs)
    trained = cell_networks.train(varied, plan, parts, compile=compiling.wanted(varied, parts, plan))
    judged = list(judge(varied, plan, parts, trained, evaluation.all_scores))

    def summary(metric: str) -> dict[str, Any]:
        return evaluation.summary(evaluation.by_run(judged, metric, runs, len(parts)))

    return {"changed": variation, **summary("log_likelihood"), "coverage_95": summary("coverage_95")["mean"]}


def _varied(cell: Cell, variation: Variation) -> tuple[Cell, int]:
    """The cell with this change, and the seed of its folds."""
    ((key, value),) = variation.items() or (("folds", splits.SEED),)
    if key == "folds":
        return cell, value
    if key == "epochs":
        return replace(cell, experiment=cell.experiment.shortened(value)), splits.SEED
    if key == "targets":
        return replace(cell, experiment=replace(cell.experiment, targets=value)), splits.SEED
    if key == "kappa":
        return replace(cell, experiment=replace(cell.experiment, kappa={0: value})), splits.SEED
    return cell.with_hyperparameters({key: value}), splits.SEED


def parsed(cell: Cell, given: Sequence[str]) -> list[Variation]:
    """Turns `epochs=50,100` into one variation per value, after the one that changes nothing."""
    kappa = {"kappa": NotNegative} if cell.known_method.has_kl else {}
    of_the_study = {"epochs": Count, "folds": Index, "targets": Annotated[str, one_of(*TARGETS)], **kappa}
    known = {**of_the_study, **hyperparameters(cell.kind, cell.method)}
    found: list[Variation] = [{}]
    for text in given:
        key, _, values = text.partition("=")
        if key not in known:
            raise unknown(text, key, known, f"something that {cell.name} has")
        for value in values.split(","):
            found.append({key: checked(known[key], key, files.parse_yaml(value))})
    longest = cell.experiment.epochs
    if any(variation.get("epochs", 0) > longest for variation in found):
        raise StudyError(f"epochs: a schedule can be shortened, not lengthened; {cell.name} has {longest}")
    return found


def known_before(path: Path, made_for: list[str | int]) -> list[dict[str, Any]]:
    """The figures of an earlier run; those of other settings do not count."""
    if not path.exists():
        return []
    kept = files.read_json(path, "this command")
    if kept.get("made_for") == made_for:
        return list(kept["variations"])
    print(f"{path} was made with other settings, data or --runs; starting over", flush=True)
    return []


def line(one: dict[str, Any]) -> str:
    changed = one["changed"].items()
    what = ", ".join(f"{key} {value}" if isinstance(value, str) else f"{key} {value:g}" for key, value in changed)
    what = what or "as in the study"
    if one["mean"] is None:
        return f"{what}: no complete run"
    deviation = "" if one["std"] is None else f" ± {one['std']:.3f}"
    return f"{what}: {one['mean']:.3f}{deviation}, 95 % intervals hold {100 * one['coverage_95']:.1f} %"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", help="a cell of the selected study, e.g. wine-mnvi")
    parser.add_argument("variations", nargs="*", help="settings to vary, e.g. epochs=50,100")
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args(given)
    cell = params.load().cell(arguments.cell)
    path = Path(cell.study.results) / "variations" / f"{cell.name}.json"
    made_for = [
        cell.fingerprint("train"),
        load_table(cell.data).summary["digest"],
        checked(Count, "--runs", arguments.runs),
    ]
    asked = parsed(cell, arguments.variations)
    found = known_before(path, made_for)
    for variation in asked:
        if not any(one["changed"] == variation for one in found):
            found.append(measured(cell, variation, arguments.runs))
            files.write_json(path, {"runs": arguments.runs, "made_for": made_for, "variations": found})
            print(f"{cell.name}, {line(found[-1])}", flush=True)


if __name__ == "__main__":
    console.run(main)
