"""Stages that are sent to a cluster of this machine, watched while they run, and repeated without it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import IO, Any

import pytest
import tiny_study
import yaml
from commands import command, workers_of
from image_study import make_cell, make_job, write_best

from pipeline import params
from pipeline.images import loop
from pipeline.images.group import Group
from pipeline.params import Cell
from tools.ray_nodes import Nodes

# An MLflow server that is away: records are kept, and nobody waits.
AWAY = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1", "MNVI_TRACKING_WAIT": "0"}
# Ray notices a lost node sooner than in its default quarter of a minute, and waits less for places that went with it.
HASTY = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # nobody takes these nodes back with a warning
    "RAY_worker_niceness": "0",  # workers get as much of a loaded machine as what waits for them
}
PATIENCE = 900.0  # seconds for one command: the machine may be busy
TABLE: dict[str, Any] = {"recipe": {"epochs": 2, "runs": 1, "milestones": [], "kappa": {0: 1.0}}}
MNVI = {"mnvi": {"hyperparameters": {"kappa_over_n": 1.0e-6, "prior_variance": 1.0e-3}}}


def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with nothing in the environment that names a cluster."""
    folder = tmp_path / "study"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("RAY_ADDRESS", "MNVI_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def make_cells(images: int, tables: int, searched: bool = True, **changes: Any) -> list[Cell]:
    """A study of so many cells of images and of tables, of which two are searched."""
    make_cell("deterministic", **changes)
    settings = yaml.safe_load(Path("params.yaml").read_text())
    tiny_study.make_table(Path("data/tiny"))
    tiny_study.write_params(Path("tables.yaml"), grid={"learning_rate": [0.05, 0.02]}, **TABLE)
    of_tables = yaml.safe_load(Path("tables.yaml").read_text())
    names = [f"lenet-{method}" for method in ("deterministic", "mnvi", "mc_dropout")][:images]
    lenets = {name: {"experiment": "lenet-mnist", "data": "mnist", "method": name[6:]} for name in names}
    tiny = dict(list(of_tables["study"]["cells"].items())[:tables])
    settings["study"] |= {"cells": lenets | tiny, "search": [*names[1:2], *list(tiny)[:1]] if searched else []}
    settings["study"] |= {"data": ["mnist", "fashion_mnist", "tiny"], "searcher": "random", "trials": 2}
    settings["datasets"] |= of_tables["datasets"]
    settings["experiments"] |= of_tables["experiments"]
    Path("params.yaml").write_text(yaml.safe_dump(settings))
    return params.load().cells()


def scores(folder: Path) -> dict[str, Any]:
    """All scores of a study but its times."""
    found = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("results/evaluate/*/scores.json")}
    for cell in found.values():
        del cell["seconds"]
        cell["metrics"].pop("inference_ms", None)
    return found


class Remotely:
    """A study whose stages are sent to the cluster."""

    def __init__(self, nodes: Nodes, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.storage = folder / "storage"
        self.environment = {
            **nodes.environment,
            "RAY_ADDRESS": nodes.http,
            "MNVI_STORAGE": str(self.storage),
            **AWAY,
            **variables,
        }

    def start(self, stage: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", f"pipeline.{stage}", *(arguments or ("lenet",))],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, stage: str, *arguments: str) -> tuple[int, str]:
        process = self.start(stage, *arguments)
        said = process.communicate(timeout=PATIENCE)[1]
        return process.returncode, said


def locally(stage: str, folder: Path, cell: str = "lenet") -> None:
    """The same stage in this process, with the Ray that is up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in AWAY.items():
            patch.setenv(name, value)
        code, said = command(stage, cell)
    assert code == 0, said


def copy_of(study: Path) -> Path:
    """Without what a stage has made or could go on from."""
    copy = study.with_name("local")
    shutil.copytree(study, copy, ignore=shutil.ignore_patterns("storage", "work", "models", "evaluate"))
    return copy


def without_times(values: Any) -> Any:
    if isinstance(values, list):
        return [without_times(value) for value in values]
    return {key: value for key, value in values.items() if key not in ("seconds", "waiting", "workers")}


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.2)


@contextmanager
def in_time(process: subprocess.Popen[str]) -> Iterator[IO[str]]:
    """What it says, while it is read; it is killed if that takes too long."""
    assert process.stderr is not None
    too_late = Timer(PATIENCE, process.kill)
    too_late.start()
    try:
        yield process.stderr
    finally:
        too_late.cancel()


def line_with(words: str, process: subprocess.Popen[str]) -> str:
    """The next line with these words that it says."""
    before = []
    with in_time(process) as said:
        for line in said:
            if words in line:
                return line
            before.append(line)
    raise AssertionError(f"it did not say {words!r}, but {''.join(before)}")


def rest_of(process: subprocess.Popen[str], status: int = 0) -> str:
    """What it says after that, until it ends with this status."""
    with in_time(process) as said, said:
        rest = said.read()
    assert process.wait(PATIENCE) == status, rest
    return rest


LONG = 40  # epochs, so that a node is lost amid them


def long_training(fewer: bool) -> Cell:
    """On two workers; without noise, which is every worker's own, and with SGD, as Adam makes much of rounding."""
    plain = {"optimizer": "sgd", "learning_rate": 1e-4, "momentum": 0.9, "clip": None, "milestones": []}
    cell = make_cell(
        "deterministic",
        experiment={**plain, "epochs": LONG, "seeds": 1},
        resources={"workers": 2, "allow_fewer_workers": fewer},
        limits={"seeds": None},
    )
    write_best(cell)
    return cell


def lose_a_node(remotely: Remotely, nodes: Nodes, cell: Cell, process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """As soon as workers on both have come to a checkpoint. The epochs until then."""
    history = remotely.storage / cell.state("train") / "progress" / "seed-0" / "history.json"
    until(lambda: history.exists() and bool(workers_of(nodes.started[1].pid, "RayTrainWorker")), process)
    epochs: list[dict[str, Any]] = json.loads(history.read_text())
    nodes.kill(1)
    return epochs


def trained_until_a_node_is_lost(
    nodes: Nodes, study: Path, fewer: bool
) -> tuple[Cell, subprocess.Popen[str], list[dict[str, Any]]]:
    """The cell, its training, which is still running, and the epochs before the loss."""
    cell = long_training(fewer)
    remotely = Remotely(nodes, study)
    process = remotely.start("train")
    return cell, process, lose_a_node(remotely, nodes, cell, process)


def assert_trained_as_by_one(cell: Cell, before: list[dict[str, Any]]) -> None:
    """Every epoch once, on the same global batches, and those before the loss not again."""
    history = json.loads((cell.model / "seed-0" / "history.json").read_text())
    assert [epoch["epoch"] for epoch in history] == list(range(1, LONG + 1))
    assert 0 < len(before) < LONG and history[: len(before)] == before, "it began anew"  # which takes another time
    alone = loop.run(make_job(cell, "alone"), Group()).history
    for figure in ("loss", "validation_nll"):
        expected = pytest.approx([epoch[figure] for epoch in alone], rel=1e-4)  # sums in another order
        assert [epoch[figure] for epoch in history] == expected, figure
