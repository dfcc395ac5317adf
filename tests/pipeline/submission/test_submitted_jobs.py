"""Stages as jobs of a Ray cluster of two nodes, with a token, started for these tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
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
from commands import workers_of
from image_study import make_cell, make_job, write_best
from s3_server import s3_server

from pipeline.images import loop
from pipeline.images.group import Group
from pipeline.params import Cell
from tools import ray_nodes
from tools.ray_nodes import Nodes

ROOT = Path(__file__).parents[3]
# A server of MLflow that is away: what would be told to it is kept, and nobody waits.
AWAY = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1", "MNVI_TRACKING_WAIT": "0"}
PATIENCE = 900.0  # seconds for one command: the machine may be busy
# Ray notices a lost node sooner than in its default quarter of a minute, and waits less for places that went with it.
HASTY = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5",
    "RAY_worker_niceness": "0",  # workers get as much of a loaded machine as what waits for them
}
MNVI = {"mnvi": {"hyperparameters": {"kappa_over_n": 1.0e-6, "prior_variance": 1.0e-3}}}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "study"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("RAY_ADDRESS", "MNVI_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def nodes(s3: tuple[str, dict[str, str]]) -> Iterator[Nodes]:
    # Keys are for the nodes to have; a job is not given them.
    with ray_nodes.cluster(variables=s3[1]) as found:
        yield found


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

    def start(self, stage: str, cell: str = "lenet") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", f"pipeline.{stage}", cell],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, stage: str, cell: str = "lenet") -> tuple[int, str]:
        process = self.start(stage, cell)
        said = process.communicate(timeout=PATIENCE)[1]
        return process.returncode, said


def locally(stage: str, folder: Path) -> None:
    """The same stage with a private Ray."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MNVI_"))}
    command = [sys.executable, "-W", "ignore", "-m", f"pipeline.{stage}", "lenet"]
    subprocess.run(command, cwd=folder, env=environment | AWAY, timeout=PATIENCE, check=True)


def copy_of(study: Path) -> Path:
    """Without what a stage has made or could go on from."""
    copy = study.with_name("local")
    shutil.copytree(study, copy, ignore=shutil.ignore_patterns("storage", "work", "models"))
    return copy


def without_times(values: Any) -> Any:
    if isinstance(values, list):
        return [without_times(value) for value in values]
    return {key: value for key, value in values.items() if key != "seconds"}


def trained(folder: Path) -> list[dict[str, Any]]:
    histories = sorted(folder.glob("results/models/lenet/seed-*/history.json"))
    assert histories
    return [without_times(json.loads(path.read_text())) for path in histories]


def stop_job(nodes: Nodes, *arguments: str) -> None:
    stop = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "job", "stop", *arguments]
    subprocess.run(stop, env=nodes.environment, timeout=PATIENCE, check=True, capture_output=True)


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


@pytest.mark.slow
def test_training_through_s3_gives_the_metrics_of_a_local_one(
    nodes: Nodes, s3: tuple[str, dict[str, str]], study: Path
) -> None:
    cell = make_cell(
        experiment={"epochs": 2, "seeds": 1, "methods": MNVI}, resources={"workers": 2}, limits={"seeds": None}
    )
    write_best(cell)
    bucket, keys = s3
    remotely = Remotely(nodes, study, **keys, MNVI_STORAGE=f"{bucket}/{study.parent.name}")
    status, said = remotely.run("train")
    assert status == 0, said
    assert "uploading" in said and "mnvi/ (" in said and "train lenet: 2/2 epochs" in said
    locally("train", local := copy_of(study))
    assert trained(study) == trained(local)
    assert [*(study / "work/jobs").rglob("metrics.jsonl")], "what MLflow did not take has not come back"
    data = [
        {path.name for path in cache.iterdir() if path.is_dir() and path.name != "jobs"} for cache in nodes.caches()
    ]
    assert data[0] & data[1], "one of the nodes has no data of its own"

    status, said = remotely.run("train")
    assert status == 0 and "submitted" not in said, "what the cluster has made already was made again"
    assert trained(study) == trained(local)


@pytest.mark.slow
def test_ctrl_c_detaches_the_same_command_attaches_and_a_stopped_job_goes_on(nodes: Nodes, study: Path) -> None:
    endless = {"epochs": 5000, "milestones": [], "seeds": 1, "methods": MNVI}
    cell = make_cell(experiment=endless, limits={"seeds": None})
    write_best(cell)
    remotely = Remotely(nodes, study)
    first = remotely.start("train")
    state = remotely.storage / cell.state("train") / "seed-0"

    def checkpoints() -> list[str]:
        return sorted(path.name for path in state.glob("checkpoint-*.pt"))

    until(lambda: bool(checkpoints()), first)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=PATIENCE)[1]
    assert first.returncode == 130
    assert "goes on without us; the same command attaches to it again" in said
    command = said.partition("`RAY_AUTH_MODE=token ray job stop ")[2].partition("`")[0].split()
    name = command[-1]

    second = remotely.start("train")
    line_with(f"{name} is running on {nodes.http} already", second)

    other = make_cell(experiment={**endless, "epochs": 4000}, limits={"seeds": None})
    assert other.fingerprint("train") != cell.fingerprint("train")
    status, said = remotely.run("train")
    assert status == 1 and f"{name} is running" in said and "with other settings, code or data" in said

    stop_job(nodes, *command)
    said = rest_of(second, status=1)
    assert f"{name} was stopped; the same command goes on from its last checkpoints" in said

    reached = checkpoints()
    make_cell(experiment=endless, limits={"seeds": None})
    third, seen = remotely.start("train"), set[str]()

    def is_further() -> bool:
        seen.update(checkpoints())
        return max(seen, default="") > reached[-1]

    until(is_further, third)
    assert min(seen) >= reached[0], "it began anew"
    stop_job(nodes, *command[:-1], f"{name.removesuffix('-1')}-2")
    assert "was stopped" in third.communicate(timeout=PATIENCE)[1]


@pytest.mark.slow
def test_a_job_submitted_by_hand_joins_the_cluster(nodes: Nodes, study: Path) -> None:
    tiny_study.make_study(study, recipe={"epochs": 1, "runs": 1, "milestones": [], "kappa": {0: 1.0}})
    shutil.copy(ROOT / ".gitignore", study)
    (study / "work").mkdir()
    (study / "work/large.bin").write_bytes(os.urandom(1_000_000))
    documented = re.search(r"```yaml\n(# job.yaml.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)
    assert documented
    (study / "job.yaml").write_text(yaml.safe_dump({**yaml.safe_load(documented[1]), "env_vars": AWAY}))
    ray = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "job", "submit", "--address", nodes.http]
    stages = [f"python -m pipeline.{stage} tiny-mnvi" for stage in ("tune", "train")]
    script = " && ".join(["test ! -e work/large.bin", *stages, "cat results/models/tiny-mnvi/training.json"])
    done = subprocess.run(
        [*ray, "--runtime-env", "job.yaml", "--", "sh", "-c", script],
        env={**nodes.environment, "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"epochs": 1' in done.stdout


@pytest.mark.slow
def test_a_cluster_with_another_token_is_named(nodes: Nodes, study: Path) -> None:
    write_best(make_cell())
    status, said = Remotely(nodes, study, RAY_AUTH_TOKEN="0" * 64).run("train")
    assert status == 1
    assert f"RAY_ADDRESS={nodes.http}: the cluster does not let us in; set RAY_AUTH_TOKEN" in said
    assert "0" * 64 not in said


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
    history = remotely.storage / cell.state("train") / "seed-0" / "history.json"
    until(lambda: history.exists() and bool(workers_of(nodes.started[1].pid, "RayTrainWorker")), process)
    epochs: list[dict[str, Any]] = json.loads(history.read_text())
    nodes.kill(1)
    return epochs


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
    cell = long_training(fewer=True)
    remotely = Remotely(losable, study)
    process = remotely.start("train")
    before = lose_a_node(remotely, losable, cell, process)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    assert said.count("so training goes on with 1 from the last checkpoint, on the same global batches") == 1, said
    assert_trained_as_by_one(cell, before)


@pytest.mark.slow
def test_training_that_may_not_go_on_with_fewer_workers_waits_for_a_node(losable: Nodes, study: Path) -> None:
    cell = long_training(fewer=False)
    remotely = Remotely(losable, study)
    process = remotely.start("train")
    before = lose_a_node(remotely, losable, cell, process)
    said = line_with("a node is lost", process)
    assert "waits for another node. With resources.allow_fewer_workers: true the same command goes on" in said
    losable.start(1)
    said = rest_of(process)
    assert "a node is lost" not in said, "it was said twice"
    assert said.count("there is room for 2 workers again, so training goes on") == 1, said
    assert_trained_as_by_one(cell, before)


def searched(rates: list[float], num_workers: int, epochs: int) -> Cell:
    grid = {"mnvi": {**MNVI["mnvi"], "grid": {"learning_rate": rates}}}
    return make_cell(
        experiment={"epochs": epochs, "milestones": [], "methods": grid},
        resources={"workers": num_workers},
        study={"search": ["lenet"]},
        limits={"search_epochs": epochs},
    )


@pytest.mark.slow
def test_a_search_says_that_it_waits_for_a_node_and_goes_on_with_it(losable: Nodes, study: Path) -> None:
    cell = searched([1.0e-3], num_workers=2, epochs=LONG)
    remotely = Remotely(losable, study)
    process = remotely.start("tune")
    state = remotely.storage / cell.state("tune")
    until(lambda: bool([*state.glob("trial-*/checkpoint-*.pt")]), process)
    losable.kill(1)
    assert "so training waits for another node" in line_with("a node is lost", process)
    losable.start(1)
    said = rest_of(process)
    assert said.count("there is room for 2 workers again, so training goes on") == 1, said
    (trial,) = json.loads((cell.tune / "trials.json").read_text())
    assert trial["status"] == "finished" and trial["epochs"] == LONG


EPOCHS = 100  # so many that trials are under way on both nodes at a time


@pytest.mark.slow
def test_a_search_survives_the_loss_of_a_node(losable: Nodes, study: Path) -> None:
    cell = searched([1.0e-3, 1.0e-4, 1.0e-5], num_workers=1, epochs=EPOCHS)
    remotely = Remotely(losable, study)
    process = remotely.start("tune")
    state = remotely.storage / cell.state("tune")
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
