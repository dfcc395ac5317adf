"""The Ray that a stage starts for itself lets nobody in but its own processes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import PATIENCE

ROOT = Path(__file__).parents[2]
# Ray reads much of its environment when it is imported, hence a process of its own, as stages are.
STAGE = """
import json, os, sys
from pipeline import cluster
with cluster.connected():
    import ray
    from ray._private.worker import _global_node as node
    seen = ray.get(ray.remote(lambda: os.environ["RAY_AUTH_TOKEN"]).remote())
    print(json.dumps({
        "address": ray.get_runtime_context().gcs_address, "session": node.get_session_dir_path(),
        "token": os.environ["RAY_AUTH_TOKEN"], "seen": seen,
    }), flush=True)
    sys.stdin.readline()
print(os.environ.get("RAY_AUTH_TOKEN"))
"""
CLIENT = """
import sys, ray
ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
print("let in, with", ray.cluster_resources()["CPU"], "CPUs")
"""


def environment(**changed: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "PYTHONPATH": str(ROOT), **changed}


@pytest.fixture(scope="module")
def stage() -> Iterator[dict[str, Any]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STAGE],
        # A user who has switched Ray's authentication off has not switched off ours.
        env=environment(RAY_AUTH_MODE="disabled"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    said = json.loads(process.stdout.readline())
    yield {**said, "process": psutil.Process(process.pid)}
    afterwards, _ = process.communicate("\n", timeout=PATIENCE)
    assert (process.returncode, afterwards) == (0, "None\n"), "the token outlives its Ray"
    assert not Path(said["session"]).parents[1].exists(), "the logs outlive their Ray"


@pytest.mark.slow
def test_only_who_has_the_token_is_let_in(stage: dict[str, Any]) -> None:
    tokens = {
        "none": environment(RAY_AUTH_MODE="disabled"),
        "wrong": environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64),
        "right": environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=stage["token"]),
    }
    clients = {
        name: subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CLIENT, stage["address"]],
            # Few attempts to connect, from the loopback interface.
            env={**variables, "RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, variables in tokens.items()
    }
    said = {name: client.communicate(timeout=PATIENCE) for name, client in clients.items()}
    assert said["right"][0].startswith("let in"), said["right"][1]
    for name in ("none", "wrong"):
        assert "Authentication token is missing or incorrect" in said[name][1]
        assert (clients[name].returncode, said[name][0]) == (1, "")


def family(stage: dict[str, Any]) -> list[psutil.Process]:
    return [stage["process"], *stage["process"].children(recursive=True)]


@pytest.mark.slow
def test_every_port_is_on_the_loopback_interface(stage: dict[str, Any]) -> None:
    places = [
        connection.laddr
        for process in family(stage)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert int(stage["address"].rpartition(":")[2]) in {place.port for place in places}
    for place in places:
        address = ip_address(place.ip)
        assert (getattr(address, "ipv4_mapped", None) or address).is_loopback, place


@pytest.mark.slow
def test_the_agents_of_the_node_ask_for_the_token_too(stage: dict[str, Any]) -> None:
    (file,) = Path(stage["session"]).glob("runtime_env_agent_port_*")
    url = f"http://127.0.0.1:{file.read_text()}/get_or_create_runtime_env"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(url, data=b""), timeout=PATIENCE)


@pytest.mark.slow
def test_the_token_is_nowhere_but_in_the_memory_of_its_processes(stage: dict[str, Any]) -> None:
    token = stage["token"]
    assert len(token) == 64 and stage["seen"] == token
    assert not [process.cmdline() for process in family(stage) if token in " ".join(process.cmdline())]
    files = [path for path in Path(stage["session"]).rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if token.encode() in path.read_bytes()]


@pytest.mark.slow
def test_other_users_cannot_reach_sockets_and_logs(stage: dict[str, Any]) -> None:
    folder = Path(stage["session"]).parents[1]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.name.startswith("ray-") and folder.stat().st_uid == os.getuid()
