"""Scores a regression cell on its test folds: per fold and run, then over runs as in the paper's table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from pipeline import files, run_statistics, tracking
from pipeline.console import progress, say
from pipeline.params import Cell
from pipeline.registry.metrics import measured
from pipeline.regression import baselines, cell_networks, folds
from pipeline.regression.predictions import Judged, judge
from pipeline.tracking import registered

HEADLINE = ("log_likelihood", "log_likelihood_std", "rmse")  # DVC shows these; scores.json has all


def run(cell: Cell) -> None:
    made_by = f"python -m pipeline.train {cell.name}"
    training = files.read_json(cell.model / "training.json", made_by)
    cell = cell.with_hyperparameters(training["hyperparameters"])
    saved = files.read_tensors(cell.model / "replicas.pt", made_by)
    table, tests = folds.load(cell)
    parts = folds.test_folds(table, tests[: training["folds"]], cell.experiment.targets)
    plan = cell_networks.plan(cell, training["folds"], training["runs"])
    trained = cell_networks.restore(cell, plan, parts, saved)
    made_of = [files.sha256(cell.model / name) for name in ("training.json", "replicas.pt")]
    depends_on = [cell.fingerprint("evaluate"), folds.digest(parts), *made_of]
    with tracking.run(cell, "evaluate", state=cell.state("evaluate"), depends_on=depends_on) as tracked:
        tracked.params({**cell.parameters("evaluate"), "runs": training["runs"], "folds": training["folds"]})
        tracked.dataset(table.summary, context="test")
        judged = []
        with progress(f"evaluate {cell.name}", training["folds"] * training["runs"], "predictions") as bar:
            for one in judge(cell, plan, parts, trained, all_scores):
                judged.append(one)
                bar.advance()
                if one.scores is None and one.epoch is None:  # training has already reported NaN losses
                    say(f"fold {one.fold}, run {one.run}: a prediction is not finite; the run is left out")
        scores = {**_scores(cell, training, judged, len(table.y)), "baselines": baselines.rmse(parts)}
        flat = _flat(scores)
        warning = baselines.verdict(cell.name, flat.get("rmse", 0.0), scores["baselines"], cell.experiment.targets)
        if warning:
            say(warning)
        headline = {name: flat[name] for name in HEADLINE if name in flat}
        files.write_json(cell.evaluate / "scores.json", scores)
        files.write_json(cell.evaluate / "metrics.json", headline)
        files.write_json(cell.plots / "curves.json", {})  # DVC expects it of every cell; only images have curves
        tracked.metrics(flat, step=0)
        tracked.scores_of(cell.state("train"), registered.name_of(cell), headline)
        tracked.artifact(cell.evaluate / "scores.json")


def summary(per_fold: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """A run's value is the mean over its folds; mean and sample deviation are over runs.

    Args:
        per_fold: [run][fold], None where a network failed. A run with such a fold is left out: the mean over its other
            folds would favour the easier ones.
    """
    return run_statistics.over_runs([statistics.fmean(run) for run in _whole(per_fold)])


def over_splits(per_split: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """A split's value is the mean over its runs; mean and sample deviation are over splits, as in the literature.

    Args:
        per_split: [run][split], None where a network failed; such a run is left out.
    """
    return summary(list(zip(*_whole(per_split), strict=True)))


def by_run(judged: Iterable[Judged], metric: str, runs: int, folds: int) -> list[list[float | None]]:
    """The values of a metric as [run][fold], None where a network failed."""
    found = {(one.run, one.fold): one.scores for one in judged}
    return [[scores[metric] if (scores := found[run, fold]) else None for fold in range(folds)] for run in range(runs)]


def _whole(runs: Sequence[Sequence[float | None]]) -> list[list[float]]:
    found = [[value for value in run if value is not None] for run in runs]
    return [values for values, run in zip(found, runs, strict=True) if len(values) == len(run)]


def all_scores(prediction: Distribution, y: Tensor) -> dict[str, float]:
    """Every regression metric that has a value."""
    found = {metric.name: metric.measure(prediction, y) for metric in measured("regression")}
    return {name: value for name, value in found.items() if value is not None}


def _scores(cell: Cell, training: dict[str, Any], judged: Sequence[Judged], rows: int) -> dict[str, Any]:
    names = [metric.name for metric in measured("regression")]
    per_fold = {name: by_run(judged, name, training["runs"], training["folds"]) for name in names}
    standard = cell.dataset.splits == "standard"
    summarise = over_splits if standard else summary
    return {
        **cell.identity,
        "complete": training["complete"],
        "runs": len(_whole(per_fold["log_likelihood"])),
        "folds": training["folds"],
        "deviation_over": "splits" if standard else "runs",
        "rows": rows,
        "epochs": training["epochs"],
        "seconds": training["seconds"],
        "compiled": training["compiled"],
        "fingerprint": training["fingerprint"],
        "num_parameters": training["num_parameters"],
        "hyperparameters": training["hyperparameters"],
        "metrics": {name: summarise(values) for name, values in per_fold.items()},
        "per_fold": per_fold,
        "failed": [{"fold": one.fold, "run": one.run, "epoch": one.epoch} for one in judged if one.scores is None],
        "missing": None,
    }


def _flat(scores: dict[str, Any]) -> dict[str, float]:
    about = {"seconds": scores["seconds"], "num_parameters": scores["num_parameters"], "failed": len(scores["failed"])}
    return run_statistics.flat(scores["metrics"]) | about
