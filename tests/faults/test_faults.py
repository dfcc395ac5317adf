"""The fault campaign: what its checks find, and a short campaign."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import Mock

import psutil
import pytest
import torch

from tools.faults import campaign as campaigns
from tools.faults import outcome, photo_faults, report, room, study, traces
from tools.faults import scene as scenes
from tools.faults.__main__ import PER_STUDY, command, deck, options, run
from tools.faults.campaign import Campaign, Disturbed, Hit
from tools.faults.injections import FAULTS, RAYLET
from tools.faults.outcome import Outcome, Run
from tools.faults.photo_faults import DamageShard, KillLoader, TakeMemory
from tools.faults.scene import Fault, Scene
from tools.faults.server import Server
from tools.ray_nodes import NotStarted

ROOT = Path(__file__).parents[2]
OF_PHOTOS = ["loader process killed", "shard damaged", "storage gone for a minute", "worker out of memory"]
NAME = ("table", "train mnvi")
RUN = Run(
    "FINISHED",
    {"epochs": "40"},
    {
        "loss": [(1, 0.5), (2, 0.25)],
        "seconds": [(1, 3.0)],
        "worker 0/images_per_second": [(1, 80.0)],
        "system/cpu": [(0, 9.0)],
    },
    models=1,
)
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
    times = {"seconds": [(1, 4.0)], "worker 0/images_per_second": [(1, 60.0)]}
    other = {**RUN.histories, **times, "system/cpu": [(0, 1.0), (1, 2.0)]}
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
        "another parameter": ("params", with_run(params={"epochs": "41"})),
        "a parameter too few": ("params", with_run(params={})),
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
    hit = {"kind": "disk full", "stage": "train table", "victim": "disk", "ended_command": True, "recovered": 12.0}
    problems = {check: ["results/x.json: not JSON"] if check == "files" else [] for check in report.CHECKS}
    study = {"mode": "driver", "hits": [hit], "commands": 2, "seconds": 90.0, "sound": False}
    document = {"command": "c", "machine": "m", "faults": 1, "minutes": 2.0, "undisturbed_seconds": 60.0}
    page = report.markdown({**document, "studies": [{**study, "problems": problems}]})
    assert "| disk full | 1 | 0 | 1 | 12 s, 12 s | train 1 |" in page
    assert "Studies that failed a check: 1." in page and "in one study" in page
    assert (
        "Study 1 (driver), files:\n\n    results/x.json: not JSON" in page and "Study 1 (driver), weights" not in page
    )
    assert f"| {report.CHECKS['files']} | 0 of 1 |" in page and f"| {report.CHECKS['weights']} | 1 of 1 |" in page


def test_the_page_tells_the_clients_that_were_killed_from_the_drivers() -> None:
    hits = [
        {"kind": "stage killed", "stage": "train table", "victim": victim, "ended_command": True, "recovered": None}
        for victim in ("driver", "client", "driver")
    ]
    study = {"mode": "job", "hits": hits, "commands": 4, "seconds": 90.0, "sound": True, "problems": {}}
    document = {"command": "c", "machine": "m", "faults": 3, "minutes": 2.0, "undisturbed_seconds": 60.0}
    assert "| stage killed (driver 2, client 1) | 3 |" in report.markdown({**document, "studies": [study]})


def test_the_recorded_campaign_is_whole_and_its_page_is_made_from_it() -> None:
    recorded = json.loads(report.RESULTS.read_text())
    hits = [hit["kind"] for study in recorded["studies"] for hit in study["hits"]]
    assert len(hits) == recorded["faults"] >= 50
    missing = [kind for kind in FAULTS if kind not in hits]
    assert missing in ([], OF_PHOTOS), "faults of photographs are newer than the recorded campaign"
    assert not missing or f"This campaign has no hit of: {', '.join(missing)}." in report.PAGE.read_text()
    assert all(study["sound"] for study in recorded["studies"])
    assert report.PAGE.read_text() == report.markdown(recorded)


def scene(stage: str = "train table", ended: int | None = None) -> Scene:
    found = Scene(Mock(), Mock(), Mock(), Path("disk"), Mock(poll=lambda: ended), Path("commands.log"))
    found.stage = lambda: stage  # type: ignore[method-assign]
    return found


STAGES = ("params settings", "prepare table", "params ood", "tune table", "train table", "evaluate table", "report")


@pytest.mark.parametrize(
    "kind, counts",
    {
        **dict.fromkeys(FAULTS, ("tune table", "train table")),
        "MLflow's server killed": ("tune table", "train table", "evaluate table", "report"),
        "dvc killed": STAGES,
        "disk full": STAGES,
        "worker out of memory": ("train table",),
    }.items(),
)
def test_a_fault_has_a_target_only_where_it_matters(
    monkeypatch: pytest.MonkeyPatch, kind: str, counts: tuple[str, ...]
) -> None:
    for module in (scenes, photo_faults):
        monkeypatch.setattr(module, "processes", lambda pattern: [Mock()])
    monkeypatch.setattr(KillLoader, "found", lambda self: [Mock()])
    monkeypatch.setattr(DamageShard, "_copies", lambda self, scene: [("train-00000.shard", Path("copy"))])
    assert tuple(stage for stage in STAGES if FAULTS[kind].target(scene(stage))) == counts
    assert not FAULTS[kind].target(scene("")), "between two stages"
    assert not FAULTS[kind].target(scene(ended=0)), "what is left of a command that has ended"


@pytest.mark.parametrize("address, victim", [("http://127.0.0.1:8265", "client"), ("10.77.0.1:6379", "driver")])
def test_a_killed_stage_was_the_client_or_the_driver(
    monkeypatch: pytest.MonkeyPatch, address: str, victim: str
) -> None:
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, "RAY_ADDRESS": address})
    monkeypatch.setattr(scenes, "processes", lambda pattern: [psutil.Process(child.pid)])
    while not psutil.Process(child.pid).environ():  # for a moment after its start a process shows none
        time.sleep(0.01)
    try:
        assert FAULTS["stage killed"].strike(scene(), Random(0)) == victim
        assert child.wait(60) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def campaign(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> Campaign:
    """One without a cluster, whose study is that command."""
    monkeypatch.setattr(study, "copy_code", lambda folder: None)
    monkeypatch.setattr(study, "make", lambda folder, *_: folder.mkdir())
    monkeypatch.setattr(study, "COMMAND", ("sh", "-c", command))
    monkeypatch.setattr(Server, "start", lambda self: None)
    nodes = Mock(environment=dict(os.environ), address="10.77.0.1:6379", http="http://127.0.0.1:8265")
    nodes.started = [Mock(poll=lambda: None)] * 2
    (folder / "disk").mkdir()
    made = Campaign(folder, nodes, Mock(), ["table"], 0)
    made.expected, made.seconds = SOUND, 1.0
    monkeypatch.setattr(made, "_left_behind", lambda environment: {"cache": ["damaged"]})
    return made


def test_an_undisturbed_study_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaigns, "PATIENCE", 0.1)
    with pytest.raises(RuntimeError, match="the undisturbed study exceeds"):
        campaign(tmp_path, monkeypatch, "sleep 60").undisturbed()


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = "mkdir -p results/models/table && printf '{' > results/models/table/training.json"
    found = campaign(tmp_path, monkeypatch, cut).disturbed("driver", [], 0.0)
    assert found.problems["ended"] == [] and found.problems["cache"] == ["damaged"]
    assert "training.json" in found.problems["numbers"][0] and not found.sound


def test_a_server_that_does_not_start_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = campaign(tmp_path, monkeypatch, "true")
    monkeypatch.setattr(Server, "start", Mock(side_effect=NotStarted("port taken")))
    assert made.disturbed("driver", [], 0.0).problems == {"told": [], "ended": ["port taken"]}


@pytest.mark.parametrize(
    "kind, at, mended, explained",
    [
        ("disk full", 10.0, 20.0, True),  # under this command, however long ago
        ("disk full", -50.0, -30.0, False),
        ("second node killed", -50.0, 50.0, True),  # the head gives the node up under the next command
        ("second node cut off", -99.0, 30.0, False),
    ],
)
def test_a_command_fails_by_what_struck_it_or_still_lingers(
    monkeypatch: pytest.MonkeyPatch, kind: str, at: float, mended: float, explained: bool
) -> None:
    monkeypatch.setattr(campaigns.time, "time", lambda: 100.0)
    assert campaigns._explains([Hit(kind, "train table", at, mended=mended)], started=0.0) is explained


def test_after_an_unsound_study_the_nodes_are_started_anew_before_its_disk_is_copied(tmp_path: Path) -> None:
    arguments = options().parse_args(["--faults", "1", "--output", str(tmp_path)])
    (tmp_path / "disk").mkdir()
    unsound = Disturbed("driver", problems={"files": ["results/x.json: not JSON"]})

    def disturbed(mode: str, hand: list[str], until: float) -> Disturbed:
        hand.clear()
        return unsound

    def restart() -> None:
        assert (tmp_path / "faults.md").exists(), "the find is not on the page yet"
        assert not (tmp_path / "unsound-1").exists()

    nodes = Mock(restart=Mock(side_effect=restart))
    assert not run(
        Mock(disturbed=disturbed, folder=tmp_path, disk=tmp_path / "disk", seconds=1.0, nodes=nodes), arguments
    )
    nodes.restart.assert_called_once()
    assert (tmp_path / "unsound-1").is_dir()


class Silent(Fault):
    """Ends the command, which does not say why."""

    def target(self, scene: Scene) -> bool:
        return scene.command.poll() is None

    def strike(self, scene: Scene, rng: Random) -> str:
        scene.command.kill()
        return "worker"

    def untold(self, scene: Scene, at: float) -> list[str]:
        return [f"said only: {scene.said()}"]


def test_what_a_study_does_not_say_about_a_fault_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAULTS, "worker out of memory", Silent())
    made = campaign(tmp_path, monkeypatch, 'test -e struck || { touch struck; echo "first"; exec sleep 60; }')
    made.seconds = 0.0
    monkeypatch.setattr(made, "_differences", lambda server: {})
    monkeypatch.setattr(made, "_left_behind", lambda environment: {})
    found = made.disturbed("driver", ["worker out of memory"], time.monotonic() + 60)
    assert found.problems["ended"] == [] and found.commands == 2
    assert [line.partition("first")[0] for line in found.problems["told"]] == ["said only: "]


class OneShard:
    """A node's copy of a shard, and a training that has it replaced, or not."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes = b"photographs") -> None:
        digest = hashlib.sha256(content).hexdigest()
        self.copy, self.content = folder / "cache-0/large" / digest, content
        self.log = folder / "0/session_2026/logs/worker-1.err"
        for path, text in ((self.copy, content), (self.log, b"")):
            path.parent.mkdir(parents=True)
            path.write_bytes(text)
        sums = folder / "disk/study/data/images/checksums.json"
        sums.parent.mkdir(parents=True)
        sums.write_text(json.dumps({"train-00000.shard": digest, "test-00000.shard": "0" * 64}))
        nodes = Mock(folder=folder, caches=lambda: [folder / "cache-0"])
        self.scene = replace(scene(), nodes=nodes, disk=folder / "disk")
        self.scene.stage = lambda: "train images"  # type: ignore[method-assign]
        monkeypatch.setattr(photo_faults, "processes", lambda pattern: [Mock()])
        monkeypatch.setattr(photo_faults.time, "sleep", self.looked)
        self.named, self.replaced = True, True

    def looked(self, seconds: float) -> None:
        assert self.copy.read_bytes() == bytes(len(self.content))
        if self.named:
            self.log.write_text("train-00000.shard: the copy on this node cannot be read (damaged); fetching it again")
        if self.replaced:
            self.copy.write_bytes(self.content)


def test_a_damaged_shard_counts_once_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, fault = OneShard(tmp_path, monkeypatch), DamageShard()
    assert fault.target(shard.scene)
    assert fault.strike(shard.scene, Random(0)) == "train-00000.shard"
    assert fault.untold(shard.scene, 0.0) == []


@pytest.mark.parametrize(
    "named, replaced, words", [(False, True, "no log of a worker names it"), (True, False, "not replaced within 0 s")]
)
def test_a_shard_that_is_not_named_or_stays_damaged_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool, replaced: bool, words: str
) -> None:
    shard, fault = OneShard(tmp_path, monkeypatch), DamageShard()
    shard.named, shard.replaced = named, replaced
    monkeypatch.setattr(photo_faults, "NOTICED", 30.0 if replaced else 0.1)
    fault.strike(shard.scene, Random(0))
    (line,) = fault.untold(shard.scene, 0.0)
    assert words in line
    assert fault.untold(shard.scene, 0.0) == [], "told twice"


def test_a_shard_that_nobody_reads_any_more_is_no_hit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = OneShard(tmp_path, monkeypatch)
    monkeypatch.setattr(photo_faults, "processes", lambda pattern: [])
    assert DamageShard().strike(shard.scene, Random(0)) is None
    assert not shard.copy.exists(), "a damaged copy is left to the next training"


@pytest.mark.parametrize(
    "said, trained, expected",
    [
        ("images-mnvi, seed 0: a node ran out of memory (low)", 100.0, []),
        ("ray: a worker died", 100.0, ["does not say so"]),
        ("images-mnvi, seed 0: a node ran out of memory (low)", 120.0, ["trained again"]),
    ],
)
def test_a_lack_of_memory_has_to_be_told_and_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, trained: float, expected: list[str]
) -> None:
    (tmp_path / "commands.log").write_text(f"an earlier command ran out of memory\n{said}\n")
    here = replace(scene("train images"), log=tmp_path / "commands.log", begin=37)
    monkeypatch.setattr(study, "progress", lambda *_: trained)
    lines = TakeMemory().untold(here, at=100.0)
    assert len(lines) == len(expected) and all(words in line for words, line in zip(expected, lines, strict=True))


def test_a_node_without_memory_reads_that_none_is_left() -> None:
    text = Path("/proc/meminfo").read_text()
    found = dict(line.split(":") for line in photo_faults._without_memory(text).splitlines())
    before = dict(line.split(":") for line in text.splitlines())
    changed = {name for name in before if before[name] != found[name]}
    assert found.keys() == before.keys() and changed <= {"MemFree", "MemAvailable", "Buffers", "Cached", "SReclaimable"}
    assert found["MemAvailable"].split() == ["0", "kB"] and found["MemTotal"] == before["MemTotal"]


@pytest.mark.soak
@pytest.mark.parametrize("mode", campaigns.MODES)
def test_a_study_of_photographs_gets_over_its_own_kinds_of_faults(tmp_path: Path, mode: str) -> None:
    try:
        room.check()
    except room.NoRoom as reason:
        pytest.skip(str(reason))
    given = ["--faults", "4", "--minutes", "20", "--cells", "images", "--modes", mode, "--output", str(tmp_path)]
    campaign = [sys.executable, "-m", "tools.faults", *given, "--kinds", *OF_PHOTOS]
    done = subprocess.run(campaign, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    studies = json.loads((tmp_path / "faults.json").read_text())["studies"]
    assert Counter(hit["kind"] for one in studies for hit in one["hits"]) == dict.fromkeys(OF_PHOTOS, 1)


@pytest.mark.soak
def test_a_regression_study_gets_over_seven_kinds_of_faults(tmp_path: Path) -> None:
    """The short form of `make faults`. A cut takes half a minute to be noticed; a raylet takes its node with it."""
    try:
        room.check()
    except room.NoRoom as reason:
        pytest.skip(str(reason))
    kinds = [kind for kind in FAULTS if kind not in ("second node cut off", "second node killed", *OF_PHOTOS)]
    assert len(kinds) == PER_STUDY
    given = ["--faults", str(len(kinds)), "--minutes", "20", "--cells", "table", "--modes", "driver"]
    campaign = [sys.executable, "-m", "tools.faults", *given, "--output", str(tmp_path), "--kinds", *kinds]
    done = subprocess.run(campaign, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    studies = json.loads((tmp_path / "faults.json").read_text())["studies"]
    assert sorted(hit["kind"] for study in studies for hit in study["hits"]) == sorted(kinds)
    assert "Every study passed every check." in (tmp_path / "faults.md").read_text()
