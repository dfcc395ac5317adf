"""Faults of a training on photographs: of its loader processes, its shards, its storage and its memory."""

from __future__ import annotations

import random
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from pipeline import files
from pipeline.blobs import CHECKSUMS
from tools.faults import study
from tools.faults.scene import TRAINS, Fault, KillProcess, Scene, processes

LOADER = "pt_data_worker"  # torch names its loader processes so
GLANCE = 0.2  # seconds between two looks
NOTICED = 90.0  # seconds within which a training has to notice a damaged shard
GROUP = re.compile(r"ray::_?RayTrainWorker")
KILLED = 30.0  # seconds within which Ray kills a worker of a node without memory
ENDS = 10.0  # seconds that workers may take to end their epoch while Ray ends them
MEMORY = Path("/proc/meminfo")


class KillLoader(KillProcess):
    """Kills a process that decodes photographs for a worker."""

    def __init__(self) -> None:
        super().__init__(re.compile(LOADER), "loader process", seldom=True)

    def found(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                if process.name() == LOADER and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


class DamageShard(Fault):
    """Overwrites a node's copy of a shard while a training reads it; counts once the study has replaced the copy."""

    seldom = True

    def __init__(self) -> None:
        self._unnamed: list[str] = []

    def target(self, scene: Scene) -> bool:
        return super().target(scene) and bool(processes(TRAINS)) and bool(self._copies(scene))

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        name, copy = rng.choice(self._copies(scene))
        named = self._named(scene, name)
        size = copy.stat().st_size
        with copy.open("r+b") as file:
            file.write(bytes(size))
        until = time.monotonic() + NOTICED
        while time.monotonic() < until and scene.command.poll() is None and processes(TRAINS):
            if _is_whole(copy):
                if self._named(scene, name) == named:
                    self._unnamed.append(f"{name}: was damaged and replaced, but no log of a worker names it")
                return name
            time.sleep(GLANCE)
        if time.monotonic() >= until:
            self._unnamed.append(f"{name}: was damaged, and not replaced within {NOTICED:.0f} s of training")
            return name
        if not _is_whole(copy):  # the training has ended: nobody reads it any more
            files.remove(copy)
        return None

    def untold(self, scene: Scene, at: float) -> list[str]:
        told, self._unnamed = self._unnamed, []
        return told

    def _copies(self, scene: Scene) -> list[tuple[str, Path]]:
        """The shards that trainings read, and where nodes have a copy of them."""
        sums = scene.study / "data" / "images" / CHECKSUMS
        if not sums.exists():
            return []
        digests = files.read_json(sums, "python -m tools.faults")
        places = [
            (name, cache / "large" / digest)
            for cache in scene.nodes.caches()
            for name, digest in sorted(digests.items())
            if not name.startswith("test")
        ]
        return [(name, copy) for name, copy in places if copy.exists()]

    def _named(self, scene: Scene, name: str) -> int:
        """How often the logs of workers name the shard as damaged."""
        words = f"{name}: the copy on this node cannot be read"
        logs = scene.nodes.folder.glob("*/session_2*/logs/worker-*")
        return sum(log.read_text(errors="replace").count(words) for log in logs)


class HideStorage(Fault):
    """Mounts an empty disk over the storage for a minute, as if its share were gone: nothing is there to be read, and
    nothing can be written.
    """

    lasts = (60.0, 60.0)

    def target(self, scene: Scene) -> bool:
        return super().target(scene) and bool(processes(GROUP))

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=4k", "none", str(scene.storage)], check=True)
        return "storage"

    def mend(self, scene: Scene) -> None:
        subprocess.run(["umount", "--lazy", str(scene.storage)], check=True)


class TakeMemory(Fault):
    """Lets both nodes read that no memory is left, until Ray's memory monitor has killed a worker.

    The machine's memory itself stays as it is: other programs need it. What Ray and the study do about it is real.
    """

    stages = ("train",)  # a search goes on without the trial, so that its results would differ

    def target(self, scene: Scene) -> bool:
        return super().target(scene) and bool(processes(GROUP))

    def strike(self, scene: Scene, rng: random.Random) -> str | None:
        there = {process.pid for process in processes(GROUP)}
        short = scene.disk.parent / "meminfo"
        short.write_text(_without_memory(MEMORY.read_text()))
        subprocess.run(["mount", "--bind", str(short), str(MEMORY)], check=True)
        try:
            until = time.monotonic() + KILLED
            while time.monotonic() < until and scene.command.poll() is None:
                if there - {process.pid for process in processes(GROUP)}:
                    return "worker"
                time.sleep(0.05)
        finally:
            subprocess.run(["umount", str(MEMORY)], check=True)
        return None

    def untold(self, scene: Scene, at: float) -> list[str]:
        lines = []
        if "ran out of memory" not in scene.said():
            lines.append("a worker was killed for lack of memory, but the command does not say so")
        if study.progress(scene.study, scene.storage) > at + ENDS:
            lines.append("after a worker was killed for lack of memory, the same command trained again")
        return lines


def _is_whole(copy: Path) -> bool:
    """Whether the copy has the digest that its name states."""
    return copy.exists() and files.sha256(copy) == copy.name


def _without_memory(text: str) -> str:
    """/proc/meminfo of a machine whose memory is all in use."""
    used_up = r"^(MemFree|MemAvailable|Buffers|Cached|SReclaimable):( +)\d+"
    return re.sub(used_up, r"\1:\g<2>0", text, flags=re.MULTILINE)
