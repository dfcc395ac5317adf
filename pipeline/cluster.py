"""Where work is sent: a Ray cluster that the user names, or one of our own on this machine.

``RAY_ADDRESS`` (``host:port``, ``ray://host:port`` or ``auto``) joins a running cluster, on whose nodes this project is
installed; it is asked with the token of ``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH`` or ``~/.ray/auth_token``. Without
it every stage starts a private Ray that listens on the loopback interface only, has a token of its own and ends with
the stage; one that an earlier, killed stage may have left is never joined. ``MNVI_VERBOSE=1`` shows what Ray and its
workers print, and keeps the logs of a private Ray.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import abandoned, files, private_ray, storage
from pipeline.errors import StudyError
from pipeline.storage import Anywhere

# What the user has set stays.
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # also towards an address, for which Ray's default is none
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # trials find relative paths where the stage does
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C reaches the stage, not Tune's own farewell
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial whose loss diverges at once has none
    "RAY_AIR_NEW_OUTPUT": "0",  # its boxes come whatever the verbosity
}


def configure() -> None:
    """Settings that Ray reads when it is imported; stages call this before they import what uses it."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("RAY_ADDRESS"):
        # The only way to have a private Ray listen on the loopback interface, on Linux too.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@contextmanager
def connected() -> Iterator[None]:
    """Ray for the length of a block; inside another such block, that one's."""
    configure()
    import ray

    if ray.is_initialized():
        yield
        return
    address, on_termination = os.environ.get("RAY_ADDRESS"), signal.getsignal(signal.SIGTERM)
    verbose = os.environ.get("MNVI_VERBOSE", "0") not in ("", "0")
    settings: dict[str, Any] = {
        "namespace": abandoned.namespace(),
        "log_to_driver": verbose,
        "logging_level": "INFO" if verbose else "ERROR",
    }
    if not address:
        with private_ray.started(keep_logs=verbose, num_cpus=_own_cpus(), **settings), abandoned.removed():
            _keep_handler(on_termination)
            yield
        return
    try:
        _join(address, settings)
        with abandoned.removed():
            _keep_handler(on_termination)
            yield
    finally:
        ray.shutdown()


def cpus() -> int:
    """How many tasks of one CPU the connected cluster runs at a time."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def this_node() -> Any:
    """A place for what only waits: on the driver's own node, since the stage ends with that one anyway."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def check_shared(place: Anywhere) -> None:
    """That all nodes see the place where workers keep what they make; else it would be lost on the disk of one."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) == 1 or not isinstance(place, Path):
        return
    probe = place / f".probe-{uuid.uuid4().hex}.tmp"
    files.write_text(probe, "")
    try:
        _check_seen(place, _looks(nodes, probe))
    finally:
        files.remove(probe)


def _looks(nodes: list[dict[str, Any]], probe: Path) -> list[tuple[str, bool]]:
    """The nodes, and whether each sees the file."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(_sees)
    # Soft: a node that is lost at this moment is no reason to stop.
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=True) for node in nodes]
    seen: list[bool] = ray.get([look.options(scheduling_strategy=place).remote(str(probe)) for place in places])
    return [(node["NodeManagerAddress"], sees) for node, sees in zip(nodes, seen, strict=True)]


def _sees(path: str) -> bool:
    return os.path.exists(path)


def _check_seen(folder: Path, looks: Iterable[tuple[str, bool]]) -> None:
    blind = [node for node, sees in looks if not sees]
    if blind:
        raise StudyError(
            f"{storage.VARIABLE}: the cluster's {', '.join(blind)} does not see {folder} of this machine, so what "
            "workers make there would be lost; set it to a folder that all nodes mount under the same path, or to "
            "s3://bucket/prefix"
        )


def _own_cpus() -> int:
    """Those that this process may use: `taskset` and containers give fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keep_handler(of_the_stage: Any) -> None:
    """Ray puts its own in place of it, which prints a stack and aborts before the stage has put things in order."""
    if callable(of_the_stage) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, of_the_stage)


def _join(address: str, settings: dict[str, Any]) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    try:
        if address != "auto":
            _knock(address)
        private_ray.reread_environment()
        ray.init(address=address, **settings)
    except AuthenticationError as error:
        raise StudyError(
            f"RAY_ADDRESS={address}: there is no token for it; set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the one "
            "that the cluster was started with, or RAY_AUTH_MODE=disabled if it lets everybody in"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise StudyError(
            f"RAY_ADDRESS={address}: no Ray cluster answers there, or it has another token ({error}); start one with "
            "`RAY_AUTH_MODE=token ray start --head`, set RAY_AUTH_TOKEN to its token, or unset RAY_ADDRESS to use this "
            "machine alone"
        ) from error


def _knock(address: str) -> None:
    """Fails at once where nobody listens; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("expected host:port, ray://host:port or auto")
    socket.create_connection((host, int(port)), timeout=10).close()
