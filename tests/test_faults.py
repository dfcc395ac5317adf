"""The fault campaign: what its checks find, and a short campaign."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest
import torch

from tools.faults import outcome, report, room, traces
from tools.faults.__main__ import PER_STUDY, command, deck, options
from tools.faults.injections import FAULTS, RAYLET
from tools.faults.outcome import Outcome, Run

ROOT = Path(__file__).parents[1]
NAME = ("table", "train mnvi")
RUN = Run("FINISHED", {}, {"loss": [(1, 0.5), (2, 0.25)], "seconds": [(1, 3.0)], "system/cpu": [(0, 9.0)]}, models=1)
SOUND = Outcome(
    numbers={"evaluate/table/metrics.json": {"nll": 2.0, "failed": float("nan")}},
    weights={"models/table/replicas.pt": {"weight": torch.tensor([1.0, 2.0])}},
    runs={NAME: [RUN]},
    versions={"table-mnvi": 1},
)


def failed(found: Outcome) -> set[str]:
    return {check for check, problems in outcome.differences(SOUND, found).items() if problems}


def with_run(**changes: object) -> Outcome:
    return replace(SOUND, runs={NAME: [replace(RUN, **changes)]})


def with_loss(*history: tuple[int, float]) -> Outcome:
    return with_run(histories={**RUN.histories, "loss": list(history)})


def test_a_study_that_only_took_another_time_is_sound() -> None:
    other = {**RUN.histories, "seconds": [(1, 4.0)], "system/cpu": [(0, 1.0), (1, 2.0)]}
    assert failed(with_run(histories=other)) == set()


@pytest.mark.parametrize(
    "check, found",
    {
        "lost": ("metrics", with_loss((1, 0.5))),
        "doubled": ("metrics", with_loss((1, 0.5), (2, 0.25), (2, 0.25))),
        "another value": ("metrics", with_loss((1, 0.5), (2, 0.3))),
        "a metric too many": ("metrics", with_run(histories={**RUN.histories, "error": [(1, 0.0)]})),
        "a run twice": ("runs", replace(SOUND, runs={NAME: [RUN, RUN]})),
        "a run too many": ("runs", replace(SOUND, runs={NAME: [RUN], ("images", "train mnvi"): [RUN]})),
        "a run too few": ("runs", replace(SOUND, runs={})),
        "not finished": ("states", with_run(status="RUNNING")),
        "logged twice": ("models", with_run(models=2)),
        "registered twice": ("models", replace(SOUND, versions={"table-mnvi": 2})),
        "other numbers": ("numbers", replace(SOUND, numbers={"evaluate/table/metrics.json": {"nll": 2.1}})),
        "other weights": (
            "weights",
            replace(SOUND, weights={"models/table/replicas.pt": {"weight": torch.tensor([1.0, 2.0 + 1e-6])}}),
        ),
    }.values(),
)
def test_what_differs_fails_its_own_check(check: str, found: Outcome) -> None:
    assert failed(found) == {check}


def test_half_written_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "whole.json").write_text("{}")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/own.json").write_text("{")
    assert traces.half_written([tmp_path]) == []
    (tmp_path / "cut.json").write_text('{"a": ')
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / ".best.yaml.host-1-ab.tmp").write_text("")
    assert len(traces.half_written([tmp_path])) == 3


def test_a_damaged_object_of_the_cache_is_found(tmp_path: Path) -> None:
    name = hashlib.md5(b"content", usedforsecurity=False).hexdigest()
    path = tmp_path / traces.CACHE / name[:2] / name[2:]
    path.parent.mkdir(parents=True)
    path.write_bytes(b"content")
    assert traces.damaged_cache(tmp_path) == []
    path.write_bytes(b"conten")
    assert len(traces.damaged_cache(tmp_path)) == 1


def test_a_process_that_is_not_ours_is_an_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "PATIENCE", 0.0)
    child = subprocess.Popen(["sleep", "60"])
    try:
        # Outside of namespaces all processes of the machine are in the table: those that ran before us are not ours.
        found = {int(line.split()[0]) for line in traces.orphans()}
        assert child.pid not in found and found
    finally:
        child.kill()
        child.wait()


def test_every_kind_is_dealt_as_often_in_an_order_that_the_seed_decides() -> None:
    kinds = list(FAULTS)
    dealt = deck(kinds, 50, Random(0))
    assert set(Counter(dealt).values()) <= {50 // len(kinds), 50 // len(kinds) + 1}
    assert dealt == deck(kinds, 50, Random(0)) != deck(kinds, 50, Random(1))


@pytest.mark.parametrize("title", ["ray::ImplicitFunc.train", "ray::RayTrainWorker", "python -m pipeline.train table"])
def test_what_a_node_has_started_is_found(monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    monkeypatch.setattr(traces, "PATIENCE", 0.0)
    child = subprocess.Popen([title, "60"], executable=shutil.which("sleep"))
    try:
        assert child.pid in {int(line.split()[0]) for line in traces.still_at_work()}
        assert child.pid not in {int(line.split()[0]) for line in traces.orphans()}
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("status, lines", [("RUNNING", 1), ("PENDING", 1), ("STOPPED", 0), ("SUCCEEDED", 0)])
def test_a_job_that_has_not_ended_is_left_on_the_cluster(
    monkeypatch: pytest.MonkeyPatch, status: str, lines: int
) -> None:
    monkeypatch.setattr(traces, "PATIENCE", 0.0)
    job = {"type": "SUBMISSION", "submission_id": "table-train-0-1", "status": status}
    nothing = {"data": {"result": {"result": []}}}
    nodes = Mock(ask=lambda path: [job] if "jobs" in path else nothing)
    assert len(traces.left_on_cluster(nodes)) == lines


def test_only_the_second_nodes_raylet_is_a_raylet_to_kill() -> None:
    raylet = "/v/ray/core/src/ray/raylet/raylet --raylet_socket_name=/tmp/1/sockets/raylet --node_ip_address={} --x=1"
    assert RAYLET.search(raylet.format(room.SECOND))
    assert not RAYLET.search(raylet.format(room.HEAD))
    assert not RAYLET.search(f"python worker.py --raylet-name=/tmp/raylet/raylet --node_ip_address={room.SECOND}")


@pytest.mark.parametrize(
    "given", [[], ["--cells", "table", "--modes", "job", "--kinds", "disk full", "MLflow's server killed"]]
)
def test_the_command_on_the_page_makes_the_same_campaign(given: list[str]) -> None:
    arguments = options().parse_args(["--faults", "7", *given])
    shown = shlex.split(command(arguments).removeprefix("python -m tools.faults "))
    assert options().parse_args(shown) == arguments


def test_the_page_names_a_study_that_failed_a_check() -> None:
    hit = {"kind": "disk full", "stage": "train table", "at": 1.0, "ended_command": True, "recovered": 12.0}
    problems = {check: ["results/x.json: not JSON"] if check == "files" else [] for check in report.CHECKS}
    study = {"mode": "driver", "hits": [hit], "misses": 2, "commands": 2, "seconds": 90.0, "sound": False}
    document = {"command": "c", "machine": "m", "faults": 1, "minutes": 2.0, "undisturbed_seconds": 60.0}
    page = report.markdown({**document, "studies": [{**study, "problems": problems}]})
    assert "| disk full | 1 | 0 | 1 | 12 s, 12 s | train 1 |" in page
    assert "Studies that failed a check: 1." in page and "in one study" in page
    assert (
        "Study 1 (driver), files:\n\n    results/x.json: not JSON" in page and "Study 1 (driver), weights" not in page
    )
    assert f"| {report.CHECKS['files']} | 0 of 1 |" in page and f"| {report.CHECKS['weights']} | 1 of 1 |" in page


@pytest.mark.slow
def test_a_regression_study_gets_over_seven_kinds_of_faults(tmp_path: Path) -> None:
    """The short form of `make faults`. A cut takes half a minute to be noticed; a raylet takes its node with it."""
    try:
        room.check()
    except room.NoRoom as reason:
        pytest.skip(str(reason))
    kinds = [kind for kind in FAULTS if kind not in ("second node cut off", "second node killed")]
    assert len(kinds) == PER_STUDY
    given = ["--faults", str(len(kinds)), "--minutes", "20", "--cells", "table", "--modes", "driver"]
    campaign = [sys.executable, "-m", "tools.faults", *given, "--output", str(tmp_path), "--kinds", *kinds]
    done = subprocess.run(campaign, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    studies = json.loads((tmp_path / "faults.json").read_text())["studies"]
    assert sorted(hit["kind"] for study in studies for hit in study["hits"]) == sorted(kinds)
    assert "Every study passed every check." in (tmp_path / "faults.md").read_text()
