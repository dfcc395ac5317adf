"""What faults strike: the campaign's machines, processes and files, and what all faults have in common."""

from __future__ import annotations

import random
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.faults.room import Network
from tools.faults.server import Server
from tools.ray_nodes import Nodes

STAGE = re.compile(r"^\S*python\S* -m pipeline\.(\w+)(?: (\S+))?")  # not the shell that started it
TRAINS = re.compile(r"ray::(RayTrainWorker|_RayTrainWorker|_train_alone|_train_chunk)")
TRIAL = re.compile(r"ray::ImplicitFunc")
# Stages in which a fault matters. `params` stands for the stages `settings` and `ood`.
ON_RAY = ("tune", "train")
TRACKED = (*ON_RAY, "evaluate", "report")
ANY = ("params", "prepare", *TRACKED)


@dataclass
class Scene:
    """The targets of faults."""

    nodes: Nodes
    network: Network
    server: Server
    disk: Path
    command: subprocess.Popen[bytes]
    log: Path  # of the command, after earlier ones
    begin: int = 0  # of the command's part of the log, in bytes

    @property
    def study(self) -> Path:
        return self.disk / "study"

    @property
    def storage(self) -> Path:
        return self.disk / "storage"

    def stage(self) -> str:
        """The running stage, such as `train images`."""
        found = processes(STAGE)
        match = STAGE.search(" ".join(found[0].cmdline())) if found else None
        return " ".join(filter(None, match.groups())) if match else ""

    def said(self) -> str:
        """The output of the command so far."""
        return self.log.read_bytes()[self.begin :].decode(errors="replace")


def processes(pattern: re.Pattern[str]) -> list[psutil.Process]:
    """The processes whose command line matches."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and pattern.search(" ".join(process.cmdline())):
                found.append(process)
    return found


class Fault(ABC):
    """One kind of fault."""

    stages: Sequence[str] = ON_RAY  # in which it strikes
    seldom = False  # whether its target exists only for a short time; such a fault takes precedence
    lasts = (0.0, 0.0)  # range of the random number of seconds before the repair
    lingers = 0.0  # seconds after the repair in which it may still end a command

    def target(self, scene: Scene) -> bool:
        """Whether there is a target. Once the command has ended, its remains belong to the checks."""
        return scene.command.poll() is None and scene.stage().partition(" ")[0] in self.stages

    @abstractmethod
    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        """Strikes, and returns the name of the victim, or None if it hit nothing."""

    def mend(self, scene: Scene) -> None:  # noqa: B027 - most faults need no repair
        """Repairs what does not recover by itself."""

    def untold(self, scene: Scene, at: float) -> list[str]:
        """What the study did not say about this fault, or did in vain after it; asked once the command has ended.

        Args:
            at: when it struck, in seconds since 1970.
        """
        return []


class KillProcess(Fault):
    """Kills one of the processes whose command line matches."""

    def __init__(self, pattern: re.Pattern[str], victim: str, seldom: bool = False) -> None:
        self.pattern, self.victim, self.seldom = pattern, victim, seldom

    def found(self) -> list[psutil.Process]:
        return processes(self.pattern)

    def target(self, scene: Scene) -> bool:
        return super().target(scene) and bool(self.found())

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        found = sorted(self.found(), key=lambda process: process.pid)
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
