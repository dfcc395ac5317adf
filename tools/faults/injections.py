"""The faults: what each looks for, what it does to it, and what whoever looks after the machines does afterwards."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.faults import room
from tools.faults.room import Network
from tools.faults.server import Server
from tools.ray_nodes import Nodes

SECOND = 1  # the node that is struck; the head's loss would be that of the cluster
GIVEN_UP = 60.0  # seconds in which the head has noticed what a node has been through
STAGE = re.compile(r"^\S*python\S* -m pipeline\.(\w+)(?: (\S+))?")  # not the shell that started it
TRAINS = re.compile(r"ray::(RayTrainWorker|_RayTrainWorker|_train_chunk)")
TRIAL = re.compile(r"ray::ImplicitFunc")
# When a fault has something to matter to. `params` is the stages `settings` and `ood`.
ON_RAY = ("tune", "train")
TRACKED = (*ON_RAY, "evaluate", "report")
ANY = ("params", "prepare", *TRACKED)
RAYLET = re.compile(rf"^\S*/raylet/raylet .*--node_ip_address={re.escape(room.SECOND)}(?: |$)")


@dataclass
class Scene:
    """What there is to strike."""

    nodes: Nodes
    network: Network
    server: Server
    disk: Path
    command: subprocess.Popen[bytes]

    def stage(self) -> str:
        """The stage that is running, as `train images`."""
        found = processes(STAGE)
        match = STAGE.search(" ".join(found[0].cmdline())) if found else None
        return " ".join(filter(None, match.groups())) if match else ""


def processes(pattern: re.Pattern[str]) -> list[psutil.Process]:
    """Those whose command line matches."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and pattern.search(" ".join(process.cmdline())):
                found.append(process)
    return found


class Fault:
    """One kind of fault."""

    stages: Sequence[str] = ON_RAY  # in which it counts
    seldom = False  # whether its target is there for a short time only: then it takes precedence
    lasts = (0.0, 0.0)  # seconds until it is mended, at random
    lingers = 0.0  # seconds after that in which it may still end a command

    def target(self, scene: Scene) -> bool:
        """Whether there is something to strike. When the command has ended, what is left of it is for the checks."""
        return scene.command.poll() is None and scene.stage().partition(" ")[0] in self.stages

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        """What it hit, if anything."""
        raise NotImplementedError

    def mend(self, scene: Scene) -> None:
        """Makes whole what does not come back by itself."""


class KillProcess(Fault):
    """One process, of those whose command line matches."""

    def __init__(self, pattern: re.Pattern[str], victim: str, seldom: bool = False) -> None:
        self.pattern, self.victim, self.seldom = pattern, victim, seldom

    def target(self, scene: Scene) -> bool:
        return super().target(scene) and bool(processes(self.pattern))

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        found = sorted(processes(self.pattern), key=lambda process: process.pid)
        if not found:
            return None
        chosen = rng.choice(found)
        with suppress(psutil.NoSuchProcess):
            victim = self.name(chosen)
            chosen.kill()
            return victim
        return None

    def name(self, process: psutil.Process) -> str:
        return self.victim


class KillStage(KillProcess):
    """The driver, or, where it is a job, one of two: the driver on the cluster or the client that waits for it."""

    def __init__(self) -> None:
        super().__init__(STAGE, "driver")

    def name(self, process: psutil.Process) -> str:
        return "client" if process.environ().get("RAY_ADDRESS", "").startswith("http") else self.victim


class KillAll(Fault):
    """`dvc repro` with everything that it started, as by a closed terminal."""

    stages = ANY

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        with suppress(ProcessLookupError):
            os.killpg(scene.command.pid, signal.SIGKILL)
            return "dvc"
        return None


class KillServer(Fault):
    stages = TRACKED
    lasts = (0.0, 20.0)

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        scene.server.kill()
        return "server"

    def mend(self, scene: Scene) -> None:
        scene.server.start()


class KillNode(Fault):
    lasts = (0.0, 10.0)
    lingers = GIVEN_UP

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        scene.nodes.kill(SECOND)
        return "node"

    def mend(self, scene: Scene) -> None:
        bring_back(scene.nodes)


class KillRaylet(KillProcess):
    """What speaks for the second node is gone; its workers and `ray start` find out by themselves."""

    lasts = (0.0, 10.0)
    lingers = GIVEN_UP

    def __init__(self) -> None:
        super().__init__(RAYLET, "raylet")

    def mend(self, scene: Scene) -> None:
        bring_back(scene.nodes)


class CutNode(Fault):
    """Its cable is pulled: nothing on it has ended, and nobody can tell."""

    lasts = (5.0, 40.0)
    lingers = GIVEN_UP

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        scene.network.cut()
        return "cable"

    def mend(self, scene: Scene) -> None:
        scene.network.join()
        bring_back(scene.nodes)


class FillDisk(Fault):
    stages = ANY
    lasts = (5.0, 20.0)
    NAME = "filler"

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        with (scene.disk / self.NAME).open("wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(1 << 16)):
                pass
        return "disk"

    def mend(self, scene: Scene) -> None:
        (scene.disk / self.NAME).unlink()


def look_after(nodes: Nodes) -> None:
    """A node that was given up ends by itself, at times late."""
    if not _runs(nodes):
        bring_back(nodes)


def bring_back(nodes: Nodes) -> None:
    """The second node is a member again, started anew if it is gone or the head has given it up."""
    until = time.monotonic() + 60
    while len(nodes.node_ids()) < 1 + SECOND and time.monotonic() < until and _runs(nodes):
        time.sleep(0.5)
    if len(nodes.node_ids()) < 1 + SECOND or not _runs(nodes):
        nodes.kill(SECOND)
        nodes.start(SECOND)


def _runs(nodes: Nodes) -> bool:
    return nodes.started[SECOND].poll() is None


FAULTS: dict[str, Fault] = {
    "worker killed": KillProcess(TRAINS, "worker", seldom=True),
    "trial killed": KillProcess(TRIAL, "trial", seldom=True),
    "stage killed": KillStage(),
    "dvc killed": KillAll(),
    "second node killed": KillNode(),
    "second node's raylet killed": KillRaylet(),
    "second node cut off": CutNode(),
    "MLflow's server killed": KillServer(),
    "disk full": FillDisk(),
}
