"""Finds what a study must not leave behind: half-written files, a damaged cache, processes, work on the cluster."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from pipeline import files
from pipeline.errors import StudyError
from tools.faults.scene import STAGE, TRAINS, TRIAL, processes
from tools.ray_nodes import Nodes

PATIENCE = 60.0  # seconds that a killed process may take to die
CACHE = Path(".dvc/cache/files/md5")
_OF_RAY = "ray"  # folders with Ray's own files, which nobody reads
_STAYS = ("_AutoscalingCoordinatorActor", "PlacementGroupCleaner")  # Ray Train's own actors, which take no CPU
_READ = {".json": files.read_json, ".yaml": files.read_yaml, ".pt": files.read_tensors}


def half_written(folders: Sequence[Path]) -> list[str]:
    """Files with temporary names, and unreadable files."""
    lines = []
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if _OF_RAY in path.relative_to(folder).parts[:-1]:
                continue
            if path.name.endswith(".tmp"):
                lines.append(f"{path}: has a temporary name")
            elif read := _READ.get(path.suffix):
                try:
                    read(path, "python -m tools.faults")
                except StudyError as error:
                    lines.append(str(error))
    return lines


def damaged_cache(study: Path) -> list[str]:
    """Objects of DVC's cache whose content does not match their name."""
    lines = []
    for path in sorted((study / CACHE).glob("??/*")):
        name = (path.parent.name + path.name).removesuffix(".dir")
        if hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != name:
            lines.append(f"{path}: the checksum of its content differs from its name")
    return lines


def out_of_date(study: Path, environment: Mapping[str, str]) -> list[str]:
    """The report of `dvc status`, if anything is out of date."""
    command = ["python", "-m", "dvc", "status", "--quiet"]
    done = subprocess.run(command, cwd=study, env=environment, capture_output=True, text=True)
    return [f"dvc status: {done.stdout}{done.stderr}"] if done.returncode else []


def orphans() -> list[str]:
    """Orphaned processes: all those in our own process table that do not descend from us."""
    return _until_none(_orphans)


def still_at_work() -> list[str]:
    """Stages, workers and trials that still run. They may descend from us, because the nodes that start them do."""
    return _until_none(_still_at_work)


def left_on_cluster(nodes: Nodes) -> list[str]:
    """Jobs, actors and placement groups that still exist and hold resources."""
    return _until_none(lambda: _left_on_cluster(nodes))


def _orphans() -> list[str]:
    lines = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            family = {process.pid, *(one.pid for one in process.parents())}
            if process.pid != 1 and os.getpid() not in family and process.status() != psutil.STATUS_ZOMBIE:
                lines.append(_line(process))
    return lines


def _still_at_work() -> list[str]:
    lines = []
    for process in [found for pattern in (STAGE, TRAINS, TRIAL) for found in processes(pattern)]:
        with suppress(psutil.NoSuchProcess):
            lines.append(_line(process))
    return lines


def _line(process: psutil.Process) -> str:
    return f"{process.pid} {' '.join(process.cmdline())[:200]}"


def _left_on_cluster(nodes: Nodes) -> list[str]:
    jobs = nodes.ask("/api/jobs/")
    if jobs is None:
        return ["the cluster does not answer"]
    lines = [
        f"jobs: {job['submission_id']} is {job['status']}"
        for job in jobs
        if job["type"] == "SUBMISSION" and job["status"] in ("PENDING", "RUNNING")
    ]
    for what, gone in (("actors", "DEAD"), ("placement_groups", "REMOVED")):
        answer = nodes.ask(f"/api/v0/{what}?limit=1000")
        if answer is None:
            return ["the cluster does not answer"]
        for one in answer["data"]["result"]["result"]:
            if one["state"] != gone and one.get("class_name") not in _STAYS:
                lines.append(f"{what}: {one.get('class_name') or one.get('name')} is {one['state']}")
    return lines


def _until_none(look: Callable[[], list[str]]) -> list[str]:
    until = time.monotonic() + PATIENCE
    while (found := look()) and time.monotonic() < until:
        time.sleep(0.5)
    return found
