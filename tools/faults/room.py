"""The campaign's own namespaces: what it cuts, fills or kills belongs to nobody else, and nothing outlives it.

They have their own process table, a network in which the second node is a separate machine at the other end of a cable,
and a small disk for the study. Root may create them, and everybody else if the system allows user namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.ray_nodes import Place

CABLE = "cable0"  # the name of both ends
HEAD, SECOND = "10.77.0.1", "10.77.0.2"
_INSIDE = "MNVI_FAULTS_INSIDE"


class NoRoom(Exception):
    """This system does not allow namespaces; the message says why."""


def enter(module: str, arguments: Sequence[str]) -> None:
    """Inside the namespaces, returns; outside, restarts the module inside and exits with its exit code."""
    if os.environ.pop(_INSIDE, None):
        return
    check()
    # The shell is the first process inside and has to reap orphaned processes; python would not.
    program = [*_unshare(), "sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", module, *arguments]
    os.execvpe(program[0], program, {**os.environ, _INSIDE: "1"})


def check() -> None:
    """Raises NoRoom where `enter` would fail."""
    missing = [name for name in ("unshare", "nsenter", "ip", "mount") if shutil.which(name) is None]
    if missing:
        raise NoRoom(f"{', '.join(missing)}: not installed; install util-linux and iproute2")
    trial = subprocess.run([*_unshare(), "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    if trial.returncode:
        raise NoRoom(f"namespaces are not permitted here ({trial.stderr.strip()}); run as root, or allow them")


def _unshare() -> list[str]:
    spaces = ["--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    return ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), *spaces]


@contextmanager
def disk(folder: Path, megabytes: int) -> Iterator[None]:
    """Mounts a disk of that size at the folder."""
    folder.mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


@dataclass(frozen=True)
class Network:
    second: int  # a process at the second node's end

    @property
    def places(self) -> list[Place]:
        return [Place(HEAD), Place(SECOND, ("nsenter", "--target", str(self.second), "--net"))]

    def cut(self) -> None:
        _run("ip", "link", "set", CABLE, "down")

    def join(self) -> None:
        _run("ip", "link", "set", CABLE, "up")


@contextmanager
def network() -> Iterator[Network]:
    """Makes a network that looks like two machines."""
    second = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        made = Network(second.pid)
        there = made.places[1].prefix
        _until_apart(second.pid)
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", str(second.pid))
        _run("ip", "address", "add", f"{HEAD}/24", "dev", CABLE)
        _run(*there, "ip", "link", "set", "lo", "up")
        _run(*there, "ip", "address", "add", f"{SECOND}/24", "dev", CABLE)
        _run(*there, "ip", "link", "set", CABLE, "up")
        made.join()
        yield made
    finally:
        second.kill()
        second.wait()


def _until_apart(pid: int) -> None:
    ours = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{pid}/ns/net") == ours:
        time.sleep(0.01)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
