"""Removes this study's abandoned placement groups: their creator is dead, but they still hold CPUs.

Ray frees a placement group when the job that made it ends. It forgets two kinds: the group of a training whose trial is
killed while the search continues, and the group that a training requests just as its job is killed. Both hold their
CPUs for good, and the next training waits for those CPUs forever.

Ray Train and Ray Tune make the groups, so we cannot name them; but each carries the namespace of its job. All stages of
a study join the cluster in one namespace. Groups in any other namespace stay untouched, whoever made them.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath

from pipeline import storage
from pipeline.background import repeating
from pipeline.tracking.identity import JOB

EVERY = 10.0  # seconds between two checks
_NOBODY = b"\xff" * 16  # made by the driver itself
_STOPPING = 5.0


def namespace() -> str:
    """The study's Ray namespace, which sets it apart from other tenants; all its stages and attempts share it.

    The study's folder identifies it. A submitted job may run on any node, so its storage and results folder identify it
    instead.
    """
    job = os.environ.get(JOB)
    if job is None:
        study = f"{socket.gethostname()} {os.getcwd()}"
    else:
        results = PurePosixPath(job).parents[2]  # <results>/<stage>/<cell>/<fingerprint>
        study = f"{os.environ.get(storage.VARIABLE)} {results}"
    return f"mnvi-{hashlib.sha256(study.encode()).hexdigest()[:16]}"


@contextmanager
def removed() -> Iterator[None]:
    """Removes abandoned groups every few seconds while the block runs."""
    from ray.exceptions import RayError

    def look() -> None:
        with suppress(RayError, RuntimeError):  # the cluster does not answer; the stage itself reports that
            remove()

    with repeating(look, EVERY, "abandoned placement groups", patience=_STOPPING):
        yield


def remove() -> None:
    """Removes the groups that are abandoned now."""
    import ray
    from ray import PlacementGroupID
    from ray._private import state
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData  # type: ignore[attr-defined]  # made at run time
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    own = ray.get_runtime_context().namespace
    dead = {job["JobID"] for job in state.jobs() if job["IsDead"]}
    # Ray's public tables do not say who made a group.
    for entry in state.state._connect_and_get_accessor().get_placement_group_table():
        group = PlacementGroupTableData.FromString(entry)
        if group.ray_namespace != own or group.state == PlacementGroupTableData.REMOVED or group.is_detached:
            continue
        if group.creator_job_id.hex() in dead or _is_dead(group.creator_actor_id):
            remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))


def _is_dead(actor: bytes) -> bool:
    from ray._private import state

    return actor != _NOBODY and state.actors(actor.hex()).get("State") == "DEAD"
