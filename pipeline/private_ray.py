"""A Ray of one stage's own, which nobody else on the machine can command, read or replace.

It asks everyone for a token that is made for it and is only in the memory of its processes, and its sockets and logs
are in a folder that other users cannot enter; ``/tmp/ray``, Ray's own choice, lets everybody write.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from pipeline.console import say
from pipeline.errors import StudyError

ATTEMPTS = 3  # at starting Ray, which gives up early on a busy machine
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


@contextmanager
def started(keep_logs: bool, **settings: Any) -> Iterator[None]:
    """Ray for the length of a block, with further settings of ``ray.init``."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR"))
    try:
        with _own_token():
            try:
                _start(folder, settings)
                yield
            finally:
                ray.shutdown()
    finally:
        if not keep_logs:
            shutil.rmtree(folder, ignore_errors=True)  # what a dying process adds meanwhile may stay


def _start(above: str, settings: dict[str, Any]) -> None:
    """In a folder below, as Ray opens what it is given to everybody."""
    import ray

    for attempt in range(1, ATTEMPTS + 1):
        folder = f"{above}/{attempt}"
        try:
            ray.init(address="local", include_dashboard=False, _temp_dir=folder, **settings)
            return
        except OSError as error:
            raise StudyError(
                f"{folder}: Ray cannot start there ({error}); set RAY_TMPDIR to a folder that can be written and has a "
                "short path, such as /tmp"
            ) from error
        except Exception as error:  # Ray has no kind of its own for a node that does not come up within half a minute
            _end_what_started(folder)
            if attempt == ATTEMPTS:
                raise StudyError(
                    f"Ray did not start on this machine ({error}); wait until the machine is less busy, or free some "
                    "memory, and give the same command again"
                ) from error
            say(f"Ray did not start ({error}); once more")


def _end_what_started(folder: str) -> None:
    """Ray itself forgets the processes of a node that did not come up, which would compete with the next attempt."""
    import ray

    ray.shutdown()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(folder in argument for argument in process.cmdline()):
                process.kill()


def reread_environment() -> None:
    """Ray keeps what the environment said about authentication when it was imported or first asked for a token."""
    from ray import _raylet as core  # compiled: mypy does not see into it

    core.Config.initialize("")  # type: ignore[attr-defined]
    core.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]


@contextmanager
def _own_token() -> Iterator[None]:
    """In the environment, where other users cannot see it and Ray's processes, our children, look for it first."""
    before = {name: os.environ.get(name) for name in (MODE, TOKEN)}
    os.environ |= {MODE: "token", TOKEN: secrets.token_hex(32)}
    reread_environment()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        reread_environment()
