"""Runs studies on a cluster of two nodes: an undisturbed one, then disturbed ones, each compared with the first."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import StudyError
from tools import ray_nodes
from tools.faults import outcome, room, study, traces
from tools.faults.injections import FAULTS, look_after
from tools.faults.outcome import Outcome
from tools.faults.room import Network
from tools.faults.scene import Scene
from tools.faults.server import Server
from tools.ray_nodes import Nodes, NotStarted

MEGABYTES = 256  # of the study's disk
PATIENCE = 1800.0  # seconds for the undisturbed study, which takes a few minutes on an idle machine
STUCK = 600.0  # seconds without progress, with all faults repaired, after which a study counts as stuck
WITHIN = 0.25  # of the undisturbed study's time; the next fault waits for a random moment in it, then for a target
GLANCE = 0.3  # seconds between two looks
NODES = {
    "GLOO_SOCKET_IFNAME": room.CABLE,
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",  # workers get as much of a loaded machine as the rest of the campaign
    # The head gives a silent node up after about ten seconds instead of a minute.
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}
MODES = ("driver", "job")  # the stages connect to the cluster themselves, or are submitted to its job server


@dataclass
class Hit:
    """A fault that hit something."""

    kind: str
    stage: str
    at: float  # seconds since 1970
    victim: str = ""
    mended: float | None = None  # seconds since 1970
    ended_command: bool = False  # False if the command survived it
    recovered: float | None = None  # seconds until the study made progress again


@dataclass
class Disturbed:
    """A study and the faults that hit it."""

    mode: str
    hits: list[Hit] = field(default_factory=list)
    commands: int = 0
    seconds: float = 0.0
    problems: dict[str, list[str]] = field(default_factory=dict)  # by check

    @property
    def sound(self) -> bool:
        return not any(self.problems.values())

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.sound}


class Campaign:
    def __init__(self, folder: Path, nodes: Nodes, network: Network, cells: Sequence[str], seed: int) -> None:
        self.folder, self.nodes, self.network, self.cells = folder, nodes, network, cells
        self.disk, self.log, self.code = folder / "disk", folder / "commands.log", folder / "code"
        self.study, self.storage = self.disk / "study", self.disk / "storage"
        self.rng = random.Random(seed)
        self.expected: Outcome | None = None
        self.seconds = 0.0  # of the undisturbed study
        study.copy_code(self.code)

    def undisturbed(self) -> None:
        """Runs the study that the others must equal."""
        with self._fresh("driver") as (server, environment):
            began = time.monotonic()
            command = study.start(self.study, environment, self.log)
            try:
                failed = command.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"the undisturbed study exceeds {PATIENCE:.0f} s:\n{self._said()}") from None
            finally:
                _end(command)
            if failed:
                raise RuntimeError(f"the undisturbed study failed:\n{self._said()}")
            self.seconds = time.monotonic() - began
            self.expected = outcome.of(self.study, server.address)
            problems = self._left_behind(environment) | outcome.differences(self.expected, self.expected)
        if any(problems.values()):
            raise RuntimeError(f"the undisturbed study is not as it should be: {problems}")

    def disturbed(self, mode: str, kinds: list[str], until: float) -> Disturbed:
        """Runs a study and injects these kinds of faults until ``until``, removing from the list those that hit."""
        assert self.expected is not None
        it, began = Disturbed(mode, problems={"told": []}), time.monotonic()
        try:
            with self._fresh(mode) as (server, environment):
                ended = self._to_the_end(it, kinds, server, environment, until)
                it.seconds = time.monotonic() - began
                it.problems["ended"] = [] if ended is None else [ended]
                if ended is None:
                    it.problems |= self._differences(server) | self._left_behind(environment)
        except NotStarted as error:  # the server or a node did not come back after a fault
            it.seconds = time.monotonic() - began
            it.problems["ended"] = [str(error)]
        return it

    def _differences(self, server: Server) -> dict[str, list[str]]:
        assert self.expected is not None
        try:
            return outcome.differences(self.expected, outcome.of(self.study, server.address))
        except StudyError as error:  # an unreadable file leaves nothing to compare
            return {"numbers": [str(error)]}

    def _to_the_end(
        self, it: Disturbed, kinds: list[str], server: Server, environment: dict[str, str], until: float
    ) -> str | None:
        """Runs the study to its end; returns why it did not end, or None."""
        while True:
            it.commands += 1
            begin = self.log.stat().st_size if self.log.exists() else 0
            started, command = time.time(), study.start(self.study, environment, self.log)
            scene = Scene(self.nodes, self.network, server, self.disk, command, self.log, begin)
            moment = self._moment()
            try:
                while command.poll() is None:
                    if self._is_stuck(it, started):
                        return f"no progress for {STUCK:.0f} s\n{self._said()}"
                    if kinds and moment <= time.monotonic() < until and self._strike(it, kinds, scene):
                        moment = self._moment()
                    else:
                        time.sleep(GLANCE)
                    look_after(self.nodes)
                    self._note_progress(it)
            finally:
                _end(command)
            for hit in it.hits:
                if hit.at >= started:
                    it.problems["told"] += FAULTS[hit.kind].untold(scene, hit.at)
            if command.returncode == 0:
                return None
            if not _explains(it.hits, started):
                return f"failed without a fault\n{self._said()}"
            it.hits[-1].ended_command = True
            say("the same command again")

    def _moment(self) -> float:
        return time.monotonic() + self.rng.uniform(0, WITHIN * self.seconds)

    def _strike(self, it: Disturbed, kinds: list[str], scene: Scene) -> bool:
        """Injects and repairs the first kind of fault that has a target; returns whether there was one."""
        stage, now = scene.stage(), time.time()
        for kind in sorted(kinds, key=lambda kind: not FAULTS[kind].seldom):
            fault = FAULTS[kind]
            if fault.target(scene) and (victim := fault.strike(scene, self.rng)):
                break
        else:
            return False
        kinds.remove(kind)
        hit = Hit(kind, stage, now, victim)
        it.hits.append(hit)
        say(f"{kind} ({victim}, {stage})")
        self._pass(it, scene, self.rng.uniform(*fault.lasts))
        fault.mend(scene)
        hit.mended = time.time()
        return True

    def _pass(self, it: Disturbed, scene: Scene, seconds: float) -> None:
        """Waits, but no longer than the command runs."""
        until = time.monotonic() + seconds
        while scene.command.poll() is None and time.monotonic() < until:
            self._note_progress(it)
            time.sleep(GLANCE)

    def _note_progress(self, it: Disturbed) -> None:
        last = study.progress(self.study, self.storage)
        for hit in it.hits:
            if hit.recovered is None and last > hit.at:
                hit.recovered = last - hit.at

    def _is_stuck(self, it: Disturbed, started: float) -> bool:
        last = max([started, study.progress(self.study, self.storage), *(hit.at for hit in it.hits)])
        return time.time() - last > STUCK

    def _said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def _left_behind(self, environment: dict[str, str]) -> dict[str, list[str]]:
        folders = [self.study / name for name in ("data", "results", "work")] + [self.storage]
        return {
            "files": traces.half_written(folders),
            "cache": traces.damaged_cache(self.study),
            "status": traces.out_of_date(self.study, environment),
            "processes": traces.orphans() + traces.still_at_work(),
            "cluster": traces.left_on_cluster(self.nodes),
        }

    @contextmanager
    def _fresh(self, mode: str) -> Iterator[tuple[Server, dict[str, str]]]:
        """Empties the disk, puts the study on it, and starts a new server."""
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.folder / "mlflow", ignore_errors=True)
        self.log.unlink(missing_ok=True)
        environment = self.nodes.environment | {
            "RAY_ADDRESS": self.nodes.address if mode == "driver" else self.nodes.http,
            "MNVI_STORAGE": str(self.storage),
            "DVC_NO_ANALYTICS": "1",
        }
        server = Server(self.folder / "mlflow", room.HEAD, environment)
        environment["MLFLOW_TRACKING_URI"] = server.address
        study.make(self.study, self.code, self.cells, environment)
        try:
            server.start()
            yield server, environment
        finally:
            server.kill()


@contextmanager
def prepared(folder: Path, cells: Sequence[str], seed: int) -> Iterator[Campaign]:
    """Sets up a campaign with its disk, its network and its cluster."""
    with (
        room.disk(folder / "disk", MEGABYTES),
        room.network() as network,
        ray_nodes.cluster(places=network.places, variables=NODES) as nodes,
    ):
        yield Campaign(folder, nodes, network, cells, seed)


def _explains(hits: Sequence[Hit], started: float) -> bool:
    """Whether a fault explains that a command has just failed: one during the command, or one that still lingers."""
    now = time.time()
    return any(
        hit.at >= started or (hit.mended is not None and now - hit.mended < FAULTS[hit.kind].lingers) for hit in hits
    )


def _end(command: subprocess.Popen[bytes]) -> None:
    """Kills the command if it still runs."""
    if command.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
    command.wait()


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)
