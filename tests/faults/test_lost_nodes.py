"""A Ray cluster loses nodes during a training or a search: the log says so, and nothing starts from scratch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import workers_of
from image_study import make_cell, make_job, write_best
from remote_study import MNVI, PATIENCE, Remotely, copy_of, enter, line_with, locally, rest_of, until, without_times

from pipeline.images import loop
from pipeline.images.group import Group
from pipeline.params import Cell
from tools import ray_nodes
from tools.ray_nodes import Nodes

# Ray notices a lost node sooner than in its default quarter of a minute, and waits less for places that went with it.
HASTY = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5",
    "RAY_worker_niceness": "0",  # workers get as much of a loaded machine as what waits for them
}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Nodes]:
    with ray_nodes.cluster(variables=HASTY) as found:
        yield found


@pytest.fixture
def losable(hasty: Nodes) -> Nodes:
    """A cluster whose second node a test may kill."""
    if hasty.started[1].poll() is not None:
        hasty.start(1)
    return hasty


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


@pytest.mark.slow
def test_training_goes_on_with_fewer_workers_when_a_node_is_lost(losable: Nodes, study: Path) -> None:
    cell, process, before = trained_until_a_node_is_lost(losable, study, fewer=True)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    assert said.count("so training resumes with 1 from the last checkpoint, on the same global batches") == 1, said
    assert_trained_as_by_one(cell, before)


@pytest.mark.soak
def test_training_that_may_not_go_on_with_fewer_workers_waits_for_a_node(losable: Nodes, study: Path) -> None:
    cell, process, before = trained_until_a_node_is_lost(losable, study, fewer=False)
    said = line_with("a node is lost", process)
    assert "waits for another node. With resources.allow_fewer_workers: true the same command resumes" in said
    losable.start(1)
    said = rest_of(process)
    assert "a node is lost" not in said, "it was said twice"
    assert said.count("there is room for 2 workers again, so training continues") == 1, said
    assert_trained_as_by_one(cell, before)


def searched(rates: list[float], num_workers: int, epochs: int) -> Cell:
    grid = {"mnvi": {**MNVI["mnvi"], "grid": {"learning_rate": rates}}}
    return make_cell(
        experiment={"epochs": epochs, "milestones": [], "methods": grid},
        resources={"workers": num_workers},
        study={"search": ["lenet"]},
        limits={"search_epochs": epochs},
    )


@pytest.mark.soak
def test_a_search_says_that_it_waits_for_a_node_and_goes_on_with_it(losable: Nodes, study: Path) -> None:
    cell = searched([1.0e-3], num_workers=2, epochs=LONG)
    remotely = Remotely(losable, study)
    process = remotely.start("tune")
    state = remotely.storage / cell.state("tune") / "progress"
    until(lambda: bool([*state.glob("trial-*/checkpoint-*.pt")]), process)
    losable.kill(1)
    assert "so training waits for another node" in line_with("a node is lost", process)
    losable.start(1)
    said = rest_of(process)
    assert said.count("there is room for 2 workers again, so training continues") == 1, said
    (trial,) = json.loads((cell.tune / "trials.json").read_text())
    assert trial["status"] == "finished" and trial["epochs"] == LONG


EPOCHS = 100  # so many that trials are under way on both nodes at a time


@pytest.mark.soak
def test_a_search_survives_the_loss_of_a_node(ray_is_up: None, losable: Nodes, study: Path) -> None:
    cell = searched([1.0e-3, 1.0e-4, 1.0e-5], num_workers=1, epochs=EPOCHS)
    remotely = Remotely(losable, study)
    process = remotely.start("tune")
    state = remotely.storage / cell.state("tune") / "progress"
    until(lambda: len({path.parent for path in state.glob("trial-*/checkpoint-*.pt")}) == 2, process)
    losable.kill(1)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    locally("tune", local := copy_of(study))
    trials = [json.loads((folder / cell.tune / "trials.json").read_text()) for folder in (study, local)]
    assert len(trials[0]) == 3
    # Which trials ASHA ends depends on when they report; whole ones are the same, bit for bit.
    whole = [
        {trial["hyperparameters"]["learning_rate"]: trial for trial in some if trial["epochs"] == EPOCHS}
        for some in trials
    ]
    both = whole[0].keys() & whole[1].keys()
    assert both and all(without_times(whole[0][key]) == without_times(whole[1][key]) for key in both)
