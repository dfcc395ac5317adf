"""Measures what a cell of Table 1 depends on: repeats its training with other settings.

    python -m pipeline.params select uci
    python -m tools.variations wine-mnvi epochs=50,100 batch_size=64,256 prior_variance=1,100 folds=2,3 kappa=0.1,1
    python -m tools.variations kin8-ddvi "targets=standardised learning_rate=0.01,0.02" --validation

Each argument changes one setting at a time; settings between quotes change together. The study's own setting comes
first, unless --only leaves it out. What can be changed:

    epochs           shortens or lengthens the whole schedule
    folds            draws another assignment of rows to folds (the study's own has seed 1)
    rows             takes only so many rows, the first ones
    last_batch       kept, or dropped where it is smaller than the others
    targets          raw or standardised
    optimizer        sgd or adam; adam does without momentum
    network          another network, such as tools.table_networks:heads_apart
    kappa            the same in every epoch
    warm_up          the first so many epochs have no KL divergence, all others the whole one
    anything else    a hyperparameter of the method

Each line has the test log-likelihood, the RMSE and the share of targets in 95 % intervals. Figures go to
<results>/variations/<cell>.json. With --validation, networks are scored on rows held out from each training fold, as
in a search; those figures go to <results>/variations/validation/<cell>.json. The command resumes after an
interruption, and starts over if settings have changed. `python -m pipeline.report --pages docs/results.md --results
recorded/*` writes the tables.
"""

from __future__ import annotations

import argparse
import itertools
import time
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
from pipeline.params.settings import OPTIMIZERS, TARGETS, Experiment
from pipeline.registry import networks
from pipeline.regression import cell_networks, compiling, evaluation, folds
from pipeline.regression.folds import Fold
from pipeline.regression.predictions import judge
from pipeline.report.variations import path_of, told
from pipeline.setting_types import Count, Index, NotNegative, checked, one_of
from pipeline.setting_types import known as among

Variation = dict[str, Any]

OF_THE_STUDY: dict[str, Any] = {
    "epochs": Count,
    "folds": Index,
    "rows": Count,
    "last_batch": Annotated[str, among("kept", "dropped")],
    "targets": Annotated[str, among(*TARGETS)],
    "optimizer": Annotated[str, among(*OPTIMIZERS["regression"])],
    "network": Annotated[str, one_of(lambda _: networks.of_kind("regression"), or_like=networks.REFERENCE)],
    "kappa": NotNegative,
    "warm_up": Count,
}
"""What can be changed besides a method's hyperparameters."""


def measured(cell: Cell, variation: Variation, runs: int, validation: bool = False) -> dict[str, Any]:
    """The log-likelihood, mean and deviation over runs as in the table, the RMSE, and what 95 % intervals hold."""
    began = time.process_time()
    varied = _varied(cell, variation)
    parts = _parts(varied, variation, validation)
    plan = cell_networks.plan(varied, len(parts), runs)
    trained = cell_networks.train(
        varied,
        plan,
        parts,
        compile=compiling.wanted(varied, parts, plan),
        drop_last=variation.get("last_batch") == "dropped",
    )
    judged = list(judge(varied, plan, parts, trained, evaluation.all_scores))

    def summary(metric: str) -> dict[str, Any]:
        return evaluation.summary(evaluation.by_run(judged, metric, runs, len(parts)))

    found = {name: summary(name)["mean"] for name in ("rmse", "coverage_95")}
    return {
        "changed": variation,
        **summary("log_likelihood"),
        **found,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def _parts(cell: Cell, variation: Variation, validation: bool) -> list[Fold]:
    table = load_table(cell.data)
    table = replace(table, x=table.x[: variation.get("rows")], y=table.y[: variation.get("rows")])
    seed = variation.get("folds", splits.SEED)
    tests = [torch.tensor(rows) for rows in splits.kfold(len(table.y), len(table.tests), seed)]
    made = folds.validation_folds if validation else folds.test_folds
    return made(table, tests, cell.experiment.targets)


def _varied(cell: Cell, variation: Variation) -> Cell:
    """The cell with these changes; `folds`, `rows` and `last_batch` are not of the cell."""
    it = cell.experiment
    for key, value in variation.items():  # in the order of `_order`
        if key == "epochs":
            it = _stretched(it, value)
        elif key == "optimizer":
            it = replace(it, optimizer=value, **({"momentum": 0.0, "nesterov": False} if value != "sgd" else {}))
        elif key == "kappa":
            it = replace(it, kappa={0: value})
        elif key == "warm_up":
            if value >= it.epochs:
                raise StudyError(f"warm_up: {value} leaves no epoch with a KL divergence; {cell.name} has {it.epochs}")
            it = replace(it, kappa={0: 0.0, value: 1.0})
        elif key in ("targets", "network"):
            it = replace(it, **{key: value})
    changed = {key: value for key, value in variation.items() if key not in OF_THE_STUDY}
    return replace(cell, experiment=it).with_hyperparameters(changed)


def _stretched(it: Experiment, epochs: int) -> Experiment:
    """The same schedule in another number of epochs."""
    if epochs <= it.epochs:
        return it.shortened(epochs)
    scale = epochs / it.epochs
    milestones = tuple(round(milestone * scale) for milestone in it.milestones)
    kappa = {round(epoch * scale): value for epoch, value in it.kappa.items()}
    return replace(it, epochs=epochs, milestones=milestones, kappa=kappa)


def parsed(cell: Cell, given: Sequence[str]) -> list[Variation]:
    """Turns `epochs=50,100` into one variation per value, after the one that changes nothing.

    `"epochs=50,100 kappa=0.1"`, one argument, gives both values of epochs together with that κ.
    """
    known = {**OF_THE_STUDY, **hyperparameters(cell.kind, cell.method)}
    if not cell.known_method.has_kl:
        known = {key: type_ for key, type_ in known.items() if key not in ("kappa", "warm_up")}
    found: list[Variation] = [{}]
    for argument in given:
        together = []
        for text in argument.split():
            key, _, values = text.partition("=")
            if key not in known:
                raise unknown(text, key, known, f"something that {cell.name} has")
            together.append([(key, checked(known[key], key, files.parse_yaml(value))) for value in values.split(",")])
        for chosen in itertools.product(*together):
            if len(dict(chosen)) < len(chosen):
                raise StudyError(f"{argument}: names a setting twice; name each once")
            found.append(dict(sorted(chosen, key=_order)))
    for variation in found:
        _varied(cell, variation)  # what does not fit together is an error before any training
    return found


def _order(change: tuple[str, Any]) -> tuple[int, str]:
    """Schedules stretch before κ replaces them; hyperparameters come last."""
    names = list(OF_THE_STUDY)
    return (names.index(change[0]) if change[0] in names else len(names), change[0])


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
    what = told(one["changed"])
    if one["mean"] is None:
        return f"{what}: no complete run"
    deviation = "" if one["std"] is None else f" ± {one['std']:.3f}"
    held = f"95 % intervals hold {100 * one['coverage_95']:.1f} %"
    return f"{what}: {one['mean']:.3f}{deviation}, RMSE {one['rmse']:.4g}, {held}, {one['cpu_seconds']:.0f} s"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", help="a cell of the selected study, e.g. wine-mnvi")
    parser.add_argument("variations", nargs="*", help='settings to vary, e.g. epochs=50,100 "epochs=50 kappa=0.1"')
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--validation", action="store_true", help="score rows of the training folds, not the test rows")
    parser.add_argument("--only", action="store_true", help="leave the study's own setting out; Table 1 has it")
    arguments = parser.parse_intermixed_args(given)
    cell = params.load().cell(arguments.cell)
    path = path_of(Path(cell.study.results), cell.name, arguments.validation)
    made_for = [
        cell.fingerprint("train"),
        load_table(cell.data).summary["digest"],
        checked(Count, "--runs", arguments.runs),
    ]
    asked = parsed(cell, arguments.variations)[arguments.only :]
    if not asked:
        parser.error("--only leaves nothing to measure; name a setting to vary")
    found = known_before(path, made_for)
    about = {**cell.identity, "runs": arguments.runs, "made_for": made_for}
    for variation in asked:
        if not any(one["changed"] == variation for one in found):
            found.append(measured(cell, variation, arguments.runs, arguments.validation))
            files.write_json(path, {**about, "variations": found})
            print(f"{cell.name}, {line(found[-1])}", flush=True)


if __name__ == "__main__":
    console.run(main)
