"""The faults: what each looks for, what it does to it, and what whoever looks after the machines does afterwards."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.faults import room
from tools.faults.room import Network
from tools.faults.server import Server
from tools.ray_nodes import Nodes

SECOND = 1  # the node that is struck; the head's loss would be that of the cluster
STAGE = re.compile(r"^\S*python\S* -m pipeline\.(\w+)(?: (\S+))?")  # not the shell that started it
TRAINS = re.compile(r"ray::(RayTrainWorker|_RayTrainWorker|_train_chunk)")
TRIAL = re.compile(r"ray::ImplicitFunc")
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

    seldom = False  # whether its target is there for a short time only: then it takes precedence
    lasts = (0.0, 0.0)  # seconds until it is mended, at random

    def target(self, scene: Scene) -> bool:
        """Whether there is something to strike."""
        raise NotImplementedError

    def strike(self, scene: Scene, rng: random.Random) -> bool:
        """Whether it hit something."""
        raise NotImplementedError

    def mend(self, scene: Scene) -> None:
        """Makes whole what does not come back by itself."""


class KillProcess(Fault):
    """One process, of those whose command line matches."""

    def __init__(self, pattern: re.Pattern[str], seldom: bool = False) -> None:
        self.pattern, self.seldom = pattern, seldom

    def target(self, scene: Scene) -> bool:
        return bool(processes(self.pattern))

    def strike(self, scene: Scene, rng: random.Random) -> bool:
        found = sorted(processes(self.pattern), key=lambda process: process.pid)
        if not found:
            return False
        with suppress(psutil.NoSuchProcess):
            rng.choice(found).kill()
            return True
        return False


class WhileItRuns(Fault):
    """Those that can strike whenever a stage is at work."""

    def target(self, scene: Scene) -> bool:
        return scene.command.poll() is None and bool(scene.stage())


class KillAll(WhileItRuns):
    """`dvc repro` with everything that it started, as by a closed terminal."""

    def strike(self, scene: Scene, rng: random.Random) -> bool:
        with suppress(ProcessLookupError):
            os.killpg(scene.command.pid, signal.SIGKILL)
            return True
        return False


class KillServer(WhileItRuns):
    lasts = (0.0, 20.0)

    def strike(self, scene: Scene, rng: random.Random) -> bool:
        scene.server.kill()
        return True

    def mend(self, scene: Scene) -> None:
        scene.server.start()


class KillNode(WhileItRuns):
    lasts = (0.0, 10.0)

    def strike(self, scene: Scene, rng: random.Random) -> bool:
        scene.nodes.kill(SECOND)
        return True

    def mend(self, scene: Scene) -> None:
        bring_back(scene.nodes)


class KillRaylet(WhileItRuns):
    """What speaks for the second node is gone; its workers and `ray start` find out by themselves."""

    lasts = (0.0, 10.0)

    def strike(self, scene: Scene, rng: random.Random) -> bool:
        return KillProcess(RAYLET).strike(scene, rng)

    def mend(self, scene: Scene) -> None:
        bring_back(scene.nodes)


class CutNode(WhileItRuns):
    """Its cable is pulled: nothing on it has ended, and nobody can tell."""

    lasts = (5.0, 40.0)

    def strike(self, scene: Scene, rng: random.Random) -> bool:
        scene.network.cut()
        return True

    def mend(self, scene: Scene) -> None:
        scene.network.join()
        bring_back(scene.nodes)


class FillDisk(WhileItRuns):
    lasts = (5.0, 20.0)
    NAME = "filler"

    def strike(self, scene: Scene, rng: random.Random) -> bool:
        with (scene.disk / self.NAME).open("wb", buffering=0) as filler, suppress(OSError):
            while filler.write(bytes(1 << 16)):
                pass
        return True

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
    "worker killed": KillProcess(TRAINS, seldom=True),
    "trial killed": KillProcess(TRIAL, seldom=True),
    "stage killed": KillProcess(STAGE),
    "dvc killed": KillAll(),
    "second node killed": KillNode(),
    "second node's raylet killed": KillRaylet(),
    "second node cut off": CutNode(),
    "MLflow's server killed": KillServer(),
    "disk full": FillDisk(),
}
