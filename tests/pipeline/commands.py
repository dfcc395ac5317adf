"""Stages' commands: run in this process, started and stopped in one of their own, and what MLflow says of them."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

import pytest

from pipeline import console

PATIENCE = 300.0  # seconds; machines that run tests may have other things to do
WAYS = ("driver killed", "driver interrupted", "worker killed")


def ways(short: str, among: Sequence[str] = WAYS) -> list[Any]:
    """The short one is for `make test`, which has every way at one stage or another, the rest for `make soak`."""
    return [way if way == short else pytest.param(way, marks=pytest.mark.soak) for way in among]


def command(stage: str, *arguments: str, stderr: TextIO | None = None) -> tuple[int, str]:
    """Exit code and words of `python -m pipeline.<stage> <arguments>`, at a fraction of a process's cost.

    Args:
        stderr: where the words go instead.
    """
    module = importlib.import_module("pipeline.report.__main__" if stage == "report" else f"pipeline.{stage}")
    said = io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with redirect_stderr(stderr or said), patch.object(sys, "argv", [f"pipeline.{stage}", *arguments]):
            console.run(module.main)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code, said.getvalue()
    finally:
        signal.signal(signal.SIGTERM, handler)
    return 0, said.getvalue()


def disturb(way: str, until: Callable[[], object], stage: str, *arguments: str, worker: str = "") -> None:
    """Starts a stage and does something to it at a certain moment; a stage whose worker is killed ends well.

    Args:
        until: whether the moment has come.
        worker: a part of the title of the processes that Ray has started for the stage.
    """
    running = subprocess.Popen(
        [sys.executable, "-m", f"pipeline.{stage}", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE
    while not (until() and (way != "worker killed" or workers_of(running.pid, worker))):
        if running.poll() is not None or time.monotonic() > deadline:
            running.kill()
            raise AssertionError(f"the moment did not come: {running.communicate()[1]}")
        time.sleep(0.01)
    if way == "worker killed":
        os.kill(workers_of(running.pid, worker)[0], signal.SIGKILL)
    else:
        running.send_signal(signal.SIGKILL if way == "driver killed" else signal.SIGINT)
    _, said = running.communicate(timeout=PATIENCE)
    expected = {"driver killed": -signal.SIGKILL, "driver interrupted": console.INTERRUPTED, "worker killed": 0}
    assert running.returncode == expected[way], said


@contextmanager
def one_cpu() -> Iterator[None]:
    """For what is started meanwhile, so that one thing comes after the other."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_them)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_of_them)


def workers_of(driver: int, title: str) -> list[int]:
    """Those descendants of a process whose title has this in it."""
    parents, found = dict[int, int](), list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended meanwhile
            lines = (folder / "status").read_text().splitlines()
            parents[int(folder.name)] = next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))
            if title.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))

    def is_below(process: int) -> bool:
        while process in parents:
            process = parents[process]
            if process == driver:
                return True
        return False

    return [process for process in found if is_below(process)]


def tracked_parameters(name: str, database: str = "mlflow.db") -> dict[str, str]:
    """Of the run of this name."""
    of_the_run = "SELECT key, value FROM params JOIN runs USING (run_uuid) WHERE name = ?"
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute(of_the_run, [name]).fetchall())


def tracked(database: str = "mlflow.db") -> dict[str, str]:
    """Name and status of every run; a name that is there twice fails."""
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT name, status FROM runs").fetchall()
    runs = dict(found)
    assert len(runs) == len(found), found
    return runs
