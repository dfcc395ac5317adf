"""A Ray cluster loses nodes during a training or a search: the log says so, and nothing starts from scratch.

The short form of these tests is in tests/pipeline/submission/test_submitted_jobs.py, which has a cluster already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_study import make_cell
from remote_study import (
    HASTY,
    LONG,
    MNVI,
    PATIENCE,
    Remotely,
    assert_trained_as_by_one,
    copy_of,
    enter,
    line_with,
    locally,
    rest_of,
    trained_until_a_node_is_lost,
    until,
    without_times,
)

from pipeline.params import Cell
from tools import ray_nodes
from tools.ray_nodes import Nodes


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
