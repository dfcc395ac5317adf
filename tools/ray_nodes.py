"""A Ray cluster of several nodes on this machine: each node has its own raylet and workers, and can be killed alone.

The cluster uses its own ports and answers only callers that have the token in ``environment``.

    with ray_nodes.cluster() as nodes:
        subprocess.run([...], env=nodes.environment | {"RAY_ADDRESS": nodes.http})
        nodes.kill(1)
        nodes.start(1)
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

PATIENCE = 180.0  # seconds for a node to join
ATTEMPTS = 3  # Ray itself gives up after half a minute, which may be too short on a busy machine
OBJECT_STORE = 100_000_000
OF_THE_CALLER = ("RAY_", "MNVI_", "MLFLOW_", "AWS_")  # variables that nodes must not inherit
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class NotStarted(RuntimeError):
    """A process that we started does not run; the message contains its log."""


@dataclass(frozen=True)
class Place:
    """Where a node runs: its address, and the prefix of its command that takes it there."""

    host: str
    prefix: tuple[str, ...] = ()


# Each node has its own address. All of 127/8 is the loopback interface, but Ray would replace 127.0.0.1.
LOOPBACK = tuple(Place(f"127.0.0.{10 + node}") for node in range(100))


@dataclass
class Nodes:
    """The running cluster; node 0 is the head."""

    places: Sequence[Place]
    cpus: int
    port: int
    dashboard: int
    folder: Path
    environment: dict[str, str]  # for users of the cluster, with the token
    variables: dict[str, str]  # further ones for the nodes
    started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """host:port of the head."""
        return f"{self.places[0].host}:{self.port}"

    @property
    def http(self) -> str:
        """URL of the job server."""
        return f"http://127.0.0.1:{self.dashboard}"

    def start(self, node: int) -> None:
        """Starts a new or killed node, and returns when it is a member of the cluster."""
        before = self.node_ids()
        for _ in range(ATTEMPTS):
            self.started[node] = _start(self._command(node), self._variables(node), self._log(node))
            if self._has_joined(node, before):
                return
            self.kill(node)
        raise NotStarted(f"node {node} did not start\n{self._log(node).read_text(errors='replace')}")

    def kill(self, node: int) -> None:
        """Kills the node at once, with all that runs on it."""
        _kill(self.started[node])

    def restart(self) -> None:
        """Restarts all nodes, without their former jobs and actors."""
        members = list(self.started)
        for node in reversed(members):
            self.kill(node)
        for node in members:
            self.start(node)

    def cache(self, node: int) -> Path:
        """A folder that stands in for the node's own disk."""
        return self.folder / f"cache-{node}"

    def caches(self) -> list[Path]:
        return [self.cache(node) for node in self.started]

    def node_ids(self) -> set[str]:
        """Ids of the nodes that the head considers alive."""
        found = self.ask("/nodes?view=summary")
        nodes = found["data"]["summary"] if found else []
        return {node["raylet"]["nodeId"] for node in nodes if node["raylet"].get("state") == "ALIVE"}

    def ask(self, path: str) -> Any | None:
        """What the dashboard answers, if it does."""
        headers = {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        request = urllib.request.Request(f"{self.http}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)
        except OSError:
            return None

    def _command(self, node: int) -> list[str]:
        place = self.places[node]
        if node == 0:
            where = ["--head", f"--port={self.port}", f"--dashboard-port={self.dashboard}"]
            where += ["--dashboard-host=127.0.0.1", f"--ray-client-server-port={free_port()}"]
        else:
            where = [f"--address={self.address}"]
        # Each node has its own folder; in a shared one, nodes would overwrite each other's unpacked job files.
        where += [f"--node-ip-address={place.host}", f"--temp-dir={self.folder / str(node)}"]
        sizes = [f"--num-cpus={self.cpus}", f"--object-store-memory={OBJECT_STORE}"]
        agents = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port")
        ports = [f"--{name}={free_port()}" for name in (*agents, "runtime-env-agent-port")]
        return [*place.prefix, *_RAY, *where, *sizes, *ports]

    def _variables(self, node: int) -> dict[str, str]:
        return self.environment | {"MNVI_NODE_CACHE": str(self.cache(node))} | self.variables

    def _log(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def _has_joined(self, node: int, before: set[str]) -> bool:
        """Waits until the head knows one more node, or the process that starts it has given up."""
        until = time.monotonic() + PATIENCE
        while self.started[node].poll() is None and time.monotonic() < until:
            if self.node_ids() - before:
                return True
            time.sleep(0.5)
        return False


@contextmanager
def cluster(
    further: int = 1, cpus: int = 1, variables: dict[str, str] | None = None, places: Sequence[Place] = LOOPBACK
) -> Iterator[Nodes]:
    """A head with a job server and ``further`` nodes, each with ``cpus`` CPUs and, besides the token, ``variables``."""
    token = secrets.token_hex(32)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_CALLER)}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # In /tmp, because the paths of Ray's sockets must not exceed about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="nodes-", dir="/tmp"))
    nodes = Nodes(places, cpus, free_port(), free_port(), folder, environment, variables or {})
    try:
        for node in range(1 + further):
            nodes.start(node)
        yield nodes
    finally:
        for node in reversed(nodes.started):
            nodes.kill(node)
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_RAY = (sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")


def _start(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_stays_with_us,
        )


def _stays_with_us() -> None:
    """Runs in the node's first process: makes it end with us, and adopt the orphans of its children."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        root.suspend()  # otherwise it would shut its children down cleanly
        while family := [member for member in root.children(recursive=True) if _alive(member)]:
            for member in family:  # the next pass gets those born meanwhile
                with suppress(psutil.NoSuchProcess):
                    member.kill()
    with suppress(ProcessLookupError):  # remains of a node that ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
