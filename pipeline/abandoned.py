"""CPUs that nobody would give back: placement groups whose maker is dead.

Ray frees a group with the end of the job that made it. Two kinds it forgets: that of a training whose trial was killed
while the search goes on, and that which a training asks for in the moment in which its job is killed. Both hold their
CPUs for good, and the next training waits for them for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

EVERY = 10.0  # seconds between two looks
_NOBODY = b"\xff" * 16  # made by the driver itself
_STOPPING = 5.0


@contextmanager
def removed() -> Iterator[None]:
    """Looks for such groups, now and then, for the length of a block with Ray."""
    from ray.exceptions import RayError

    stop = threading.Event()

    def look() -> None:
        while not stop.wait(EVERY):
            with suppress(RayError, RuntimeError):  # a cluster that does not answer; the stage itself says so
                remove()

    thread = threading.Thread(target=look, name="abandoned placement groups", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STOPPING)


def remove() -> None:
    from ray import PlacementGroupID
    from ray._private import state
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData  # type: ignore[attr-defined]  # made at run time
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    dead = {job["JobID"] for job in state.jobs() if job["IsDead"]}
    # Ray's public tables do not say who made a group.
    for entry in state.state._connect_and_get_accessor().get_placement_group_table():
        group = PlacementGroupTableData.FromString(entry)
        if group.state == PlacementGroupTableData.REMOVED or group.is_detached:
            continue
        if group.creator_job_id.hex() in dead or _is_dead(group.creator_actor_id):
            remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))


def _is_dead(actor: bytes) -> bool:
    from ray._private import state

    return actor != _NOBODY and state.actors(actor.hex()).get("State") == "DEAD"
