"""One private Ray for all stages of a command, which otherwise start one each and wait seconds for it.

    python -m pipeline.shared_ray dvc repro

The first stage that needs Ray starts a process that holds it; further stages join. The process ends with the command,
also when the command is killed. The Ray is as closed to others as that of a single stage (:mod:`pipeline.private_ray`):
its token and address are in a folder that other users cannot enter, named by ``MNVI_SHARED_RAY``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import files, private_ray
from pipeline.console import say
from pipeline.errors import StudyError

VARIABLE = "MNVI_SHARED_RAY"
ADDRESS = "address.json"  # written once Ray is up; it names the token, too
WHY_NOT = "server.log"
PATIENCE = 180.0  # seconds for Ray to start, on a busy machine
_LOOK = 0.1
_OWNER = "MNVI_SHARED_RAY_OWNER"


def run(command: list[str]) -> int:
    """Runs a command whose stages share a Ray, and returns its exit code."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR")))
    environment = {**os.environ, VARIABLE: str(folder), _OWNER: str(os.getpid())}
    try:
        with subprocess.Popen(command, env=environment) as process:
            # A terminal sends Ctrl-C to the command, too; this process waits until it has ended.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            code = process.wait()
    finally:
        _end(folder)
    return code if code >= 0 else 128 - code


@contextmanager
def joined(folder: Path, **settings: Any) -> Iterator[None]:
    """Connects to the shared Ray while the block runs, and starts it if it is not there yet.

    Args:
        settings: further arguments of ``ray.init`` for this stage.
    """
    import ray

    place = _started(folder)
    with private_ray.token(place["token"]):
        try:
            ray.init(address=place["address"], **settings)
            yield
        finally:
            ray.shutdown()


def _started(folder: Path) -> dict[str, str]:
    """Where the shared Ray is; starts it first if need be. Stages run one after the other, so none starts a second."""
    place = folder / ADDRESS
    if not place.exists():
        with (folder / WHY_NOT).open("w") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "pipeline.shared_ray", "--serve", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends a stage, not the Ray of the next one
            )
        given_up = time.monotonic() + PATIENCE
        while not place.exists():
            if server.poll() is not None or time.monotonic() > given_up:
                server.kill()
                raise StudyError(
                    f"Ray did not start on this machine: {(folder / WHY_NOT).read_text().strip()[-500:]}; wait until "
                    "the machine is less busy, or free some memory, and run the same command again"
                )
            time.sleep(_LOOK)
    found: dict[str, str] = files.read_json(place, "python -m pipeline.shared_ray")
    return found


def serve(folder: Path) -> None:
    """Holds a private Ray until the folder is gone or the command that owns it has ended."""
    from pipeline import cluster

    owner = int(os.environ[_OWNER])
    cluster.configure()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    settings = {"num_cpus": cluster.own_cpus(), "log_to_driver": False, "logging_level": "ERROR"}
    with private_ray.started(keep_logs=cluster.verbose(), **settings):
        import ray

        here = {
            "address": ray.get_runtime_context().gcs_address,
            "token": os.environ[private_ray.TOKEN],
            "pid": str(os.getpid()),
        }
        files.write_json(folder / ADDRESS, here)
        while folder.exists() and alive(owner):
            time.sleep(_LOOK)


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    import psutil

    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def _end(folder: Path) -> None:
    """Ends the shared Ray, if one was started, and waits for it: nothing of a command outlives it."""
    place = folder / ADDRESS
    server = int(files.read_json(place, "python -m pipeline.shared_ray")["pid"]) if place.exists() else None
    shutil.rmtree(folder, ignore_errors=True)
    given_up = time.monotonic() + 30
    while server is not None and alive(server):
        if time.monotonic() > given_up:
            say(f"the Ray of this command, process {server}, takes long to end")
            return
        time.sleep(_LOOK)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--serve"]:
        serve(Path(arguments[1]))
    elif not arguments or arguments[0].startswith("-"):
        print(__doc__)
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    else:
        sys.exit(run(arguments))


if __name__ == "__main__":
    main()
