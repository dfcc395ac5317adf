"""The Ray that all stages of one command share: made once, closed to others, gone with the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import PATIENCE

from pipeline import shared_ray

ROOT = Path(__file__).parents[2]
STAGE = """
import json, os
from pathlib import Path
from pipeline import cluster, shared_ray
with cluster.connected():
    import ray
    folder = Path(os.environ[shared_ray.VARIABLE])
    print(json.dumps({
        "address": ray.get_runtime_context().gcs_address,
        "answer": ray.get(ray.remote(lambda: 6 * 7).remote()),
        "server": int(json.loads((folder / shared_ray.ADDRESS).read_text())["pid"]),
        "folder": str(folder), "mode": oct(folder.stat().st_mode & 0o777),
    }), flush=True)
"""


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "PYTHONPATH": str(ROOT)}


def shared(command: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.shared_ray", "sh", "-c", command]


@pytest.mark.slow
def test_stages_join_one_ray_that_ends_with_the_command() -> None:
    stage = f"{sys.executable} -W ignore -c '{STAGE}'"
    ended = subprocess.run(
        shared(f"{stage} && {stage} && exit 3"), env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 3, ended.stderr
    first, second = (json.loads(line) for line in ended.stdout.splitlines())
    assert first == second and first["answer"] == 42
    assert first["mode"] == "0o700"
    assert not shared_ray.alive(first["server"]) and not Path(first["folder"]).exists()


@pytest.mark.slow
def test_the_ray_ends_when_the_command_is_killed() -> None:
    killed = shared(f"{sys.executable} -W ignore -c '{STAGE}' && sleep 600")
    with subprocess.Popen(
        killed, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as command:
        assert command.stdout is not None
        said = json.loads(command.stdout.readline())
        os.killpg(command.pid, signal.SIGKILL)
    given_up = time.monotonic() + PATIENCE
    while shared_ray.alive(said["server"]):
        assert time.monotonic() < given_up, "the Ray of a killed command goes on"
        time.sleep(0.1)


def test_a_command_without_stages_starts_no_ray() -> None:
    told = subprocess.run(shared(f"echo ${shared_ray.VARIABLE}"), env=environment(), capture_output=True, text=True)
    assert told.returncode == 0 and not Path(told.stdout.strip()).exists()
    assert "ray" in Path(told.stdout.strip()).name
