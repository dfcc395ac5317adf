"""A private Ray for one stage, which no other user of the machine can command, read or replace.

Every connection needs a token, which is made for this Ray and exists only in the memory of its processes. Sockets and
logs are in a folder that other users cannot enter; Ray's default, ``/tmp/ray``, is writable for everybody.
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

ATTEMPTS = 3  # to start Ray, which gives up early on a busy machine
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


@contextmanager
def started(keep_logs: bool, **settings: Any) -> Iterator[None]:
    """Runs Ray while the block runs; ``settings`` are further arguments of ``ray.init``."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR"))
    try:
        with token(secrets.token_hex(32)):
            try:
                _start(folder, settings)
                yield
            finally:
                ray.shutdown()
    finally:
        if not keep_logs:
            shutil.rmtree(folder, ignore_errors=True)  # a dying process may still add files; they may stay


def _start(above: str, settings: dict[str, Any]) -> None:
    """Starts Ray in a subfolder, because Ray makes the folder it is given accessible to everybody."""
    import ray

    for attempt in range(1, ATTEMPTS + 1):
        folder = f"{above}/{attempt}"
        try:
            ray.init(address="local", include_dashboard=False, _temp_dir=folder, **settings)
            return
        except OSError as error:
            raise StudyError(
                f"{folder}: Ray cannot start there ({error}); set RAY_TMPDIR to a writable folder with a short path, "
                "such as /tmp"
            ) from error
        except Exception as error:  # Ray has no exception class for a node that does not start within half a minute
            _end_what_started(folder)
            if attempt == ATTEMPTS:
                raise StudyError(
                    f"Ray did not start on this machine ({error}); wait until the machine is less busy, or free some "
                    "memory, and run the same command again"
                ) from error
            say(f"Ray did not start ({error}); trying again")


def _end_what_started(folder: str) -> None:
    """Kills the processes of a node that did not start: Ray forgets them, and they would slow the next attempt."""
    import ray

    ray.shutdown()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(folder in argument for argument in process.cmdline()):
                process.kill()


def reread_environment() -> None:
    """Makes Ray read its authentication variables again; it caches them on import and on the first use of a token."""
    from ray import _raylet as core  # compiled: mypy does not see into it

    core.Config.initialize("")  # type: ignore[attr-defined]
    core.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]


@contextmanager
def token(secret: str) -> Iterator[None]:
    """Sets a token in the environment: other users cannot see it there, and our Ray processes look there first."""
    before = {name: os.environ.get(name) for name in (MODE, TOKEN)}
    os.environ |= {MODE: "token", TOKEN: secret}
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
