"""Trains every network of a regression cell and puts their weights into one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline import files, tracking
from pipeline.console import say
from pipeline.params import Cell
from pipeline.regression import folds, networks
from pipeline.regression.chunks import Chunks, train
from pipeline.regression.networks import Replica

EVERY = 10  # epochs between two points of the loss that is kept


def run(cell: Cell) -> None:
    cell = chosen(cell)
    table, tests = folds.load(cell)
    parts = folds.test_folds(table, tests)
    runs = number_of_runs(cell)
    plan = networks.plan(cell, len(tests), runs)
    chunks = Chunks.of(cell, parts, plan, table.summary["digest"])
    with tracking.run(cell, "train", state=cell.state("train")) as tracked:
        tracked.params({**cell.hyperparameters, "runs": runs, "folds": len(tests), "epochs": cell.experiment.epochs})
        tracked.dataset(table.summary)
        results = train(chunks, lambda index, result: _say_failures(chunks.parts[index], result["failures"]))
        failures, state, history = _joined(results, chunks)
        files.write_tensors(cell.model / "replicas.pt", {"state": state, "failures": failures})
        intervals = [(result["began"], result["ended"]) for result in results]
        files.write_json(
            cell.model / "training.json",
            {
                "folds": len(tests),
                "runs": runs,
                "members": networks.members(cell),
                "seeds": [network.seed for network in plan],
                "epochs": cell.experiment.epochs,
                "hyperparameters": cell.hyperparameters,
                "num_parameters": networks.num_parameters(cell, parts),
                "complete": cell.complete and runs == cell.experiment.runs,
                "seconds": busy(intervals),
                "cpu_seconds": sum(result["cpu_seconds"] for result in results),
                "chunks": [ended - began for began, ended in intervals],
                "failures": [_failure(plan[k], epoch) for k, epoch in failures.items()],
                "history": history,
            },
        )
        for point in history:
            tracked.metrics({"loss": point["loss"]}, step=point["epoch"])
        tracked.artifact(cell.model / "training.json")


def chosen(cell: Cell) -> Cell:
    """The cell with the hyperparameters that tuning chose."""
    best = files.read_yaml(cell.tune / "best.yaml", made_by=f"python -m pipeline.tune {cell.name}")
    return cell.with_hyperparameters(best["hyperparameters"])


def number_of_runs(cell: Cell) -> int:
    runs = cell.experiment.runs or 1
    return min(runs, cell.study.regression.runs or runs)


def busy(intervals: Sequence[tuple[float, float]]) -> float:
    """Seconds in which at least one chunk was being trained: no pause between two starts of a stage counts."""
    total, until = 0.0, 0.0
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _joined(
    results: Sequence[dict[str, Any]], chunks: Chunks
) -> tuple[dict[int, int], dict[str, Tensor], list[dict[str, float]]]:
    failures, start = {}, 0
    for result, part in zip(results, chunks.parts, strict=True):
        failures.update({start + k: epoch for k, epoch in result["failures"].items()})
        start += len(part)
    state = {name: torch.cat([result["state"][name] for result in results]) for name in results[0]["state"]}
    losses = torch.cat([result["losses"] for result in results])
    sound = losses[[k for k in range(start) if k not in failures]].mean(0).tolist()
    epochs = range(EVERY, len(sound) + 1, EVERY)
    return failures, state, [{"epoch": epoch, "loss": sound[epoch - 1]} for epoch in epochs]


def _say_failures(part: Sequence[Replica], failures: dict[int, int]) -> None:
    for k, epoch in failures.items():
        say(f"{part[k]}: the loss was no number in epoch {epoch}; this network is left out of the scores")


def _failure(network: Replica, epoch: int) -> dict[str, int]:
    return {"fold": network.fold, "run": network.run, "member": network.member, "epoch": epoch}
