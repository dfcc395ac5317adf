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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_study
import torch
import yaml
from image_study import make_cell, make_job, write_best
from remote_study import (
    AWAY,
    HASTY,
    MNVI,
    PATIENCE,
    Remotely,
    assert_trained_as_by_one,
    copy_of,
    enter,
    line_with,
    locally,
    make_cells,
    rest_of,
    scores,
    trained_until_a_node_is_lost,
    until,
    without_times,
)
from s3_server import s3_server
from two_workers import together

from pipeline import params
from pipeline.images import loop
from pipeline.images.checkpoints import Checkpoints
from pipeline.images.group import Group
from pipeline.images.job import Job
from tools import ray_nodes
from tools.ray_nodes import Nodes

ROOT = Path(__file__).parents[3]
TRACKED = ("settings", "ood")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def nodes(s3: tuple[str, dict[str, str]]) -> Iterator[Nodes]:
    # Keys are for the nodes to have; a job is not given them.
    with ray_nodes.cluster(variables={**HASTY, **s3[1]}) as found:
        yield found


def trained(folder: Path) -> list[dict[str, Any]]:
    histories = sorted(folder.glob("results/models/lenet/seed-*/history.json"))
    assert histories
    return [without_times(json.loads(path.read_text())) for path in histories]


def train_here(rank: int, job: Job) -> None:
    loop.run(job, Group.joined(torch.device("cpu")))


def trained_here(meeting: Path) -> list[dict[str, Any]]:
    """The epochs of the study's cell on two workers of this machine, without Ray."""
    job = make_job(params.load().cell("lenet"), "here")
    together(train_here, meeting, job)
    state = Checkpoints(job.state).load()
    assert state is not None
    return without_times(state["position"]["history"])


def stop_job(nodes: Nodes, *arguments: str) -> None:
    stop = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "job", "stop", *arguments]
    subprocess.run(stop, env=nodes.environment, timeout=PATIENCE, check=True, capture_output=True)


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
    expected = trained_here(study.parent / "meeting")
    assert trained(study) == [expected]
    assert [*(study / "work/jobs").rglob("metrics.jsonl")], "what MLflow did not take has not come back"
    data = [
        {path.name for path in cache.iterdir() if path.is_dir() and path.name != "jobs"} for cache in nodes.caches()
    ]
    assert data[0] & data[1], "one of the nodes has no data of its own"

    status, said = remotely.run("train")
    assert status == 0 and "submitted" not in said, "what the cluster has made already was made again"
    assert trained(study) == [expected]


@pytest.mark.soak
def test_cells_side_by_side_have_the_scores_of_one_machine(ray_is_up: None, nodes: Nodes, study: Path) -> None:
    """The short form of the next test, with searches left out."""
    cells = make_cells(1, 1, searched=False, experiment={"epochs": 1, "milestones": []})
    status, said = Remotely(nodes, study).run("submission", "--cells", ",".join(cell.name for cell in cells))
    assert status == 0, said
    assert overlapping(nodes, "train") == 2, "one training waited for the end of the other"
    local = copy_of(study)
    for cell in cells:
        for stage in ("tune", "train", "evaluate"):
            locally(stage, local, cell.name)
    assert scores(study) == scores(local)


@pytest.mark.soak
def test_eight_cells_side_by_side_are_faster_than_one_after_the_other(nodes: Nodes, study: Path) -> None:
    cells = make_cells(3, 5, experiment={"epochs": 2, "milestones": []})
    one_by_one = copy_of(study)
    began = time.monotonic()
    remotely = Remotely(nodes, study)
    status, said = remotely.run("submission")
    together = time.monotonic() - began
    assert status == 0, said
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, study)
    for command in (["-m", "dvc", "init", "--no-scm", "--quiet"], *(["-m", "pipeline.params", of] for of in TRACKED)):
        subprocess.run([sys.executable, "-W", "ignore", *command], cwd=study, env=remotely.environment, check=True)
    stages = [f"{stage}@{cell.name}" for cell in cells for stage in ("tune", "train", "evaluate")]
    shutil.rmtree(study / "results/evaluate")
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--single-item", *stages],
        cwd=study,
        env=remotely.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "submitted" not in done.stdout + done.stderr, "DVC made again what the cluster has made"
    assert set(scores(study)) == {cell.name for cell in cells}

    began = time.monotonic()
    for cell in cells:
        for stage in ("tune", "train", "evaluate"):
            status, said = Remotely(nodes, one_by_one).run(stage, cell.name)
            assert status == 0, said
    separately = time.monotonic() - began
    print(f"eight cells: {together:.0f} s side by side, {separately:.0f} s one after the other")
    assert scores(study) == scores(one_by_one)
    assert together < separately


def overlapping(nodes: Nodes, stage: str) -> int:
    """The largest number of a stage's jobs that ran at one moment."""
    jobs = nodes.ask("/api/jobs/")
    assert jobs
    times = [(job["start_time"], job["end_time"]) for job in jobs if (job["metadata"] or {}).get("stage") == stage]
    return max(sum(start <= moment < end for start, end in times) for moment, _ in times)


@pytest.mark.soak
def test_ctrl_c_detaches_the_same_command_attaches_and_a_stopped_job_goes_on(nodes: Nodes, study: Path) -> None:
    endless = {"epochs": 5000, "milestones": [], "seeds": 1, "methods": MNVI}
    cell = make_cell(experiment=endless, limits={"seeds": None})
    write_best(cell)
    remotely = Remotely(nodes, study)
    first = remotely.start("train")
    state = remotely.storage / cell.state("train") / "progress" / "seed-0"

    def checkpoints() -> list[str]:
        return sorted(path.name for path in state.glob("checkpoint-*.pt"))

    until(lambda: bool(checkpoints()), first)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=PATIENCE)[1]
    assert first.returncode == 130
    assert "continues without us; run the same command to attach to it again" in said
    command = said.partition("`RAY_AUTH_MODE=token ray job stop ")[2].partition("`")[0].split()
    name = command[-1]

    second = remotely.start("train")
    line_with(f"{name} is already running on {nodes.http}", second)

    other = make_cell(experiment={**endless, "epochs": 4000}, limits={"seeds": None})
    assert other.fingerprint("train") != cell.fingerprint("train")
    status, said = remotely.run("train")
    assert status == 1 and f"{name} is running" in said and "with other settings, code or data" in said

    stop_job(nodes, *command)
    said = rest_of(second, status=1)
    assert f"{name} was stopped; run the same command to continue from its last checkpoints" in said

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
    assert f"RAY_ADDRESS={nodes.http}: the cluster refuses access; set RAY_AUTH_TOKEN" in said
    assert "0" * 64 not in said


@pytest.mark.slow
def test_training_goes_on_with_fewer_workers_when_a_node_is_lost(nodes: Nodes, study: Path) -> None:
    cell, process, before = trained_until_a_node_is_lost(nodes, study, fewer=True)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    assert said.count("so training resumes with 1 from the last checkpoint, on the same global batches") == 1, said
    assert_trained_as_by_one(cell, before)
