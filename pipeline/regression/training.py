"""Trains every network of a regression cell and writes their weights to one file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import mnvi
from mnvi.replicas import Replicas
from pipeline import files, tracking
from pipeline.console import say
from pipeline.data.tablesets import Table
from pipeline.params import Cell
from pipeline.regression import cell_networks, folds
from pipeline.regression.cell_networks import Replica
from pipeline.regression.chunks import Chunks, train
from pipeline.regression.folds import Fold

EVERY = 10  # epochs between two points of the recorded loss


def run(cell: Cell) -> None:
    cell = cell.tuned()
    table, tests = folds.load(cell)
    parts = folds.test_folds(table, tests, cell.experiment.targets)
    runs = number_of_runs(cell)
    plan = cell_networks.plan(cell, len(tests), runs)
    chunks = Chunks.of(cell, parts, plan)
    depends_on = [*chunks.depends_on, runs]  # the recorded loss is the mean over all runs
    with tracking.run(cell, "train", state=cell.state("train"), depends_on=depends_on) as tracked:
        tracked.params({**cell.parameters("train"), "runs": runs, "folds": len(tests)})
        tracked.dataset(table.summary)
        results = train(chunks, lambda index, result: _say_failures(chunks.parts[index], result["failures"]))
        state = {name: torch.cat([result["state"][name] for result in results]) for name in results[0]["state"]}
        losses = torch.cat([result["losses"] for result in results])
        trained = cell_networks.restore(cell, plan, parts, {"state": state, "losses": losses})
        failures = trained.failures
        files.write_tensors(cell.model / "replicas.pt", {"state": state, "losses": losses, "failures": failures})
        history = _history(losses, failures)
        intervals = [(result["began"], result["ended"]) for result in results]
        files.write_json(
            cell.model / "training.json",
            {
                "folds": len(tests),
                "runs": runs,
                "members": cell_networks.members(cell),
                "seeds": [network.seed for network in plan],
                "epochs": cell.experiment.epochs,
                "hyperparameters": cell.hyperparameters,
                "num_parameters": cell_networks.num_parameters(cell, parts),
                "complete": cell.complete,
                "compiled": chunks.compiled,
                "fingerprint": cell.fingerprint("train"),
                "seconds": busy(intervals),
                "cpu_seconds": sum(result["cpu_seconds"] for result in results),
                "chunks": [ended - began for began, ended in intervals],
                "failures": [_failure(plan[k], epoch) for k, epoch in failures.items()],
                "history": history,
            },
        )
        for point in history:
            tracked.metrics({"loss": point["loss"]}, step=int(point["epoch"]))
        tracked.artifact(cell.model / "training.json")
        _log_model(cell, trained, parts[0], table, tracked)


def number_of_runs(cell: Cell) -> int:
    assert cell.experiment.runs is not None  # reading params.yaml requires it
    return cell.experiment.runs


def busy(intervals: Sequence[tuple[float, float]]) -> float:
    """Seconds during which at least one chunk trained; pauses between two starts of the stage do not count."""
    total, until = 0.0, 0.0
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _log_model(cell: Cell, trained: Replicas, fold: Fold, table: Table, tracked: tracking.Run) -> None:
    """Logs the network of fold 0 in run 0, the first of the plan; for an ensemble, all its members.

    The table averages over this network and others. Choosing the best of them would need the test rows, which must not
    influence the choice.
    """
    first = range(cell_networks.members(cell))
    if any(k in trained.failures for k in first):
        say(f"{cell.name}: the first network failed, so no model is logged")
        return
    nets = [trained.module(k).net for k in first]
    net = mnvi.Ensemble(nets) if cell.known_method.members else nets[0]
    inputs = {"mean": fold.mean.tolist(), "std": fold.std.tolist()}
    targets = {"mean": fold.target_mean, "std": fold.target_std}
    tracking.model(
        tracked,
        net,
        cell,
        torch.as_tensor(table.x),
        inputs=inputs,
        targets=targets,
        columns=table.summary.get("columns"),
        step=cell.experiment.epochs,
    )


def _history(losses: Tensor, failures: dict[int, int]) -> list[dict[str, float]]:
    """The mean loss, over the networks that did not fail, of every tenth epoch."""
    sound = [k for k in range(len(losses)) if k not in failures]
    if not sound:
        return []
    means = losses[sound].mean(0).tolist()
    return [{"epoch": epoch, "loss": means[epoch - 1]} for epoch in range(EVERY, len(means) + 1, EVERY)]


def _say_failures(part: Sequence[Replica], failures: dict[int, int]) -> None:
    for k, epoch in failures.items():
        say(f"{part[k]}: the loss was not finite in epoch {epoch}; run {part[k].run} is left out of the scores")


def _failure(network: Replica, epoch: int) -> dict[str, int]:
    return {"fold": network.fold, "run": network.run, "member": network.member, "epoch": epoch}
