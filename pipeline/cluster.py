"""Connects a stage to Ray: to a cluster that the user names, or to a private Ray on this machine.

``RAY_ADDRESS`` (``host:port``, ``ray://host:port`` or ``auto``) joins a running cluster whose nodes have this project
installed; the token comes from ``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH`` or ``~/.ray/auth_token``. Without
``RAY_ADDRESS`` every stage starts a private Ray, which listens on the loopback interface only, has its own token and
ends with the stage; the stages of one ``make study`` share one (:mod:`pipeline.shared_ray`). A stage never joins a Ray
that an earlier, killed stage left behind. ``MNVI_VERBOSE=1`` shows what Ray and its workers print, and keeps the logs
of a private Ray, shared or not.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import abandoned, files, forwarded, private_ray, shared_ray, storage
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.storage import Anywhere

WAIT = "MNVI_CLUSTER_WAIT"
# Defaults: variables that the user has set stay as they are.
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # for a cluster at an address too, where Ray's default is no authentication
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # trials find relative paths where the stage does
    "RAY_task_oom_retries": "0",  # Ray's default repeats without end what its memory monitor has killed
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C reaches the stage instead of Tune's own handler
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial whose loss diverges at once reports no metric
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints its boxes at any verbosity
}


def configure() -> None:
    """Sets the variables that Ray reads on import; stages call this before they import anything that uses Ray."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("RAY_ADDRESS"):
        # The only way to make a private Ray listen on the loopback interface, on Linux too.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def verbose() -> bool:
    """Whether ``MNVI_VERBOSE`` is set."""
    return os.environ.get("MNVI_VERBOSE", "0") not in ("", "0")


@contextmanager
def connected() -> Iterator[None]:
    """Connects to Ray while the block runs; a nested block shares the outer connection."""
    configure()
    import ray

    if ray.is_initialized():
        yield
        return
    address, on_termination = os.environ.get("RAY_ADDRESS"), signal.getsignal(signal.SIGTERM)
    settings: dict[str, Any] = {
        "namespace": abandoned.namespace(),
        "log_to_driver": verbose(),
        "logging_level": "INFO" if verbose() else "ERROR",
    }
    if not address:
        shared = os.environ.get(shared_ray.VARIABLE)
        if shared and Path(shared).is_dir():
            own = shared_ray.joined(Path(shared), **settings)
        else:
            say("starting Ray on this machine")
            own = private_ray.started(keep_logs=verbose(), num_cpus=own_cpus(), **settings)
        with own, abandoned.removed():
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


def nodes() -> list[dict[str, float]]:
    """The resources of each living node of the connected cluster, whether they are in use or not."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def grown(needs: dict[str, float], count: int) -> list[dict[str, float]]:
    """Waits until this many workers fit on the nodes, as the cluster may still be growing, and returns the nodes.

    The wait ends with :func:`patience`, whether they fit or not.

    Args:
        needs: resources of one worker.
    """
    from ray.autoscaler.sdk import request_resources

    wait, began, there = patience(), time.monotonic(), nodes()
    if wait and room(there, needs) < count:
        asked = ", ".join(f"{count * amount:g} {kind}" for kind, amount in needs.items())
        say(f"the cluster has no room for {asked} yet; waiting for more nodes for up to {wait:g} s ({WAIT})")
        request_resources(bundles=[dict(needs)] * count)  # an autoscaler adds nodes for it
        try:
            while room(there, needs) < count and time.monotonic() - began < wait:
                time.sleep(min(2.0, wait))
                there = nodes()
        finally:
            request_resources(bundles=[])
    return there


def patience() -> float:
    """Seconds to wait for nodes: those of ``MNVI_CLUSTER_WAIT``. A Ray of this machine alone does not grow."""
    if not os.environ.get("RAY_ADDRESS"):
        return 0.0
    given = os.environ.get(WAIT, "300")
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise StudyError(f"{WAIT}={given}: expected seconds, 0 or more")
    return seconds


def room(nodes: list[dict[str, float]], needs: dict[str, float]) -> int:
    """How many workers fit, counted node by node: a worker cannot use the leftovers of two nodes together."""
    return sum(min(math.floor(node.get(kind, 0.0) / amount) for kind, amount in needs.items()) for node in nodes)


def this_node() -> Any:
    """Schedules tasks that only wait on the driver's node: if that node is lost, the stage ends anyway."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def check_shared(place: Anywhere) -> None:
    """Checks that all nodes see the place that workers write to; otherwise a result could stay on one node's disk."""
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
    """The address of each node, and whether it sees the file."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(_sees)
    # Soft: losing a node at this moment is no reason to stop.
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=True) for node in nodes]
    seen: list[bool] = ray.get([look.options(scheduling_strategy=place).remote(str(probe)) for place in places])
    return [(node["NodeManagerAddress"], sees) for node, sees in zip(nodes, seen, strict=True)]


def _sees(path: str) -> bool:
    return os.path.exists(path)


def _check_seen(folder: Path, looks: Iterable[tuple[str, bool]]) -> None:
    blind = [node for node, sees in looks if not sees]
    if blind:
        raise StudyError(
            f"{storage.VARIABLE}: the cluster's {', '.join(blind)} does not see {folder} of this machine, so workers' "
            "results would be lost; set it to a folder that all nodes mount under the same path, or to "
            "s3://bucket/prefix"
        )


def own_cpus() -> int:
    """The number of CPUs this process may use; `taskset` and containers allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keep_handler(of_the_stage: Any) -> None:
    """Restores the stage's SIGTERM handler: Ray's own prints a stack and aborts before the stage can clean up."""
    if callable(of_the_stage) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, of_the_stage)


def _join(address: str, settings: dict[str, Any]) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    try:
        if address != "auto":
            _knock(address)
        private_ray.reread_environment()
        variables = forwarded.variables()
        if variables and "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:  # a job's workers have its variables
            settings = {**settings, "runtime_env": {"env_vars": variables}}
        ray.init(address=address, **settings)
    except AuthenticationError as error:
        raise StudyError(
            f"RAY_ADDRESS={address}: there is no token for it; set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token "
            "that the cluster was started with, or RAY_AUTH_MODE=disabled if the cluster uses no tokens"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise StudyError(
            f"RAY_ADDRESS={address}: no Ray cluster answers there, or it has another token ({error}); start one with "
            "`RAY_AUTH_MODE=token ray start --head`, set RAY_AUTH_TOKEN to its token, or unset RAY_ADDRESS to use this "
            "machine alone"
        ) from error


def _knock(address: str) -> None:
    """Fails at once if nothing listens at the address; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("expected host:port, ray://host:port or auto")
    socket.create_connection((host, int(port)), timeout=10).close()
