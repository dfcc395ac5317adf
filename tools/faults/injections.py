"""The faults: the target of each, what it does to the target, and the repair that an operator would make."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import suppress

import psutil

from tools.faults import room
from tools.faults.photo_faults import DamageShard, HideStorage, KillLoader, TakeMemory
from tools.faults.scene import ANY, STAGE, TRACKED, TRAINS, TRIAL, Fault, KillProcess, Scene
from tools.ray_nodes import Nodes

SECOND = 1  # the node that faults hit; losing the head would mean losing the cluster
GIVEN_UP = 60.0  # seconds within which the head notices what happened to a node
RAYLET = re.compile(rf"^\S*/raylet/raylet .*--node_ip_address={re.escape(room.SECOND)}(?: |$)")


class KillStage(KillProcess):
    """Kills the driver; with a job, either the driver on the cluster or the client that waits for it."""

    def __init__(self) -> None:
        super().__init__(STAGE, "driver")

    def name(self, process: psutil.Process) -> str:
        return "client" if process.environ().get("RAY_ADDRESS", "").startswith("http") else self.victim


class KillAll(Fault):
    """Kills `dvc repro` with everything that it started, like a closed terminal."""

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
    """Kills the second node's raylet; its workers and `ray start` have to notice by themselves."""

    lasts = (0.0, 10.0)
    lingers = GIVEN_UP

    def __init__(self) -> None:
        super().__init__(RAYLET, "raylet")

    def mend(self, scene: Scene) -> None:
        bring_back(scene.nodes)


class CutNode(Fault):
    """Pulls the node's cable: its processes still run, but nobody else can tell."""

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
    """Brings the second node back if it has ended: after the head gives a node up, the node ends, sometimes late."""
    if not _runs(nodes):
        bring_back(nodes)


def bring_back(nodes: Nodes) -> None:
    """Makes the second node a member again; restarts it if it is gone or the head has given it up."""
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
    "loader process killed": KillLoader(),
    "shard damaged": DamageShard(),
    "storage gone for a minute": HideStorage(),
    "worker out of memory": TakeMemory(),
}
