"""A Ray cluster of several nodes on this machine: each has its own raylet, its own workers and its own end.

It has ports of its own and answers those who have the token in ``environment``.

    with ray_nodes.cluster() as nodes:
        subprocess.run([...], env=nodes.environment | {"RAY_ADDRESS": nodes.http})
        nodes.kill(1)
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PATIENCE = 180.0  # seconds for a node to join
ATTEMPTS = 3  # Ray itself gives up after half a minute, which a busy machine may need
OBJECT_STORE = 100_000_000
OF_THE_CALLER = ("RAY_", "MNVI_", "MLFLOW_", "AWS_")  # variables that nodes must not inherit
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass
class Nodes:
    """The running cluster; node 0 is the head."""

    address: str  # host:port of the head
    http: str  # of its job server
    environment: dict[str, str]  # of whoever uses the cluster, the token included
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill(self, node: int) -> None:
        """The node is gone from one moment to the next, with all that runs on it."""
        _kill(self.started[node])

    def caches(self) -> list[Path]:
        """A folder for each node that stands for its own disk."""
        return [_cache(self.folder, node) for node in range(len(self.started))]

    def node_ids(self) -> set[str]:
        """Of the nodes that are alive, as the head sees them."""
        token = self.environment["RAY_AUTH_TOKEN"]
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.http}/nodes?view=summary", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                found = json.load(answer)["data"]["summary"]
        except OSError:
            return set()
        return {node["raylet"]["nodeId"] for node in found if node["raylet"].get("state") == "ALIVE"}


@contextmanager
def cluster(further: int = 1, cpus: int = 1, variables: dict[str, str] | None = None) -> Iterator[Nodes]:
    """A head with a job server and ``further`` nodes, each with so many CPUs and, beside the token, these variables."""
    token = secrets.token_hex(32)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_CALLER)}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    port, dashboard = free_port(), free_port()
    # In /tmp, since the names of Ray's sockets may not be longer than a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="nodes-", dir="/tmp"))
    nodes = Nodes(f"{_host(0)}:{port}", f"http://127.0.0.1:{dashboard}", environment, folder)
    with ExitStack() as ends:
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        head = ["--head", f"--port={port}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
        head += [f"--ray-client-server-port={free_port()}"]
        for node in range(1 + further):
            where = head if node == 0 else [f"--address={nodes.address}"]
            # A folder for each, or they would unpack what jobs bring over one another.
            where = [*where, f"--node-ip-address={_host(node)}", f"--temp-dir={folder / str(node)}"]
            cache = {"MNVI_NODE_CACHE": str(_cache(folder, node))}
            log = folder / f"node-{node}.log"
            for _ in range(ATTEMPTS):
                process = _start(where, cpus, environment | cache | (variables or {}), log)
                ends.callback(_kill, process)
                if _has_joined(nodes, process, node + 1):
                    break
                _kill(process)
            else:
                raise RuntimeError(f"node {node} did not start\n{log.read_text(errors='replace')}")
            nodes.started.append(process)
        yield nodes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(where: list[str], cpus: int, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    agents = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port")
    ports = [f"--{name}={free_port()}" for name in (*agents, "runtime-env-agent-port")]
    sizes = [f"--num-cpus={cpus}", f"--object-store-memory={OBJECT_STORE}"]
    command = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, *where, *sizes, *ports],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_stays_with_us,
        )


def _stays_with_us() -> None:
    """In the node's first process: it ends with us, and what its children leave behind becomes its own child."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        root.suspend()  # or it would see its children off in an orderly way
        while family := [member for member in root.children(recursive=True) if _alive(member)]:
            for member in family:  # those that are born meanwhile have their turn next time
                with suppress(psutil.NoSuchProcess):
                    member.kill()
    with suppress(ProcessLookupError):  # what is left of one that had ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _host(node: int) -> str:
    """Each has an address of its own; all of 127/8 is the loopback interface, but Ray would replace 127.0.0.1."""
    return f"127.0.0.{10 + node}"


def _has_joined(nodes: Nodes, process: subprocess.Popen[bytes], number: int) -> bool:
    """Waits until the head knows so many nodes, or the process that starts the last of them has given up."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        if len(nodes.node_ids()) == number:
            return True
        time.sleep(0.5)
    return False


def _cache(folder: Path, node: int) -> Path:
    return folder / f"cache-{node}"
