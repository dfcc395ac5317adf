"""Placement groups whose makers are dead are removed, and no others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import ray
from commands import PATIENCE
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

from pipeline import abandoned


@pytest.fixture
def cluster(ray_is_down: None) -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class Maker:
    def make(self) -> PlacementGroup:
        group = placement_group([{"CPU": 1}])
        group.wait(PATIENCE)
        return group


def state(group: PlacementGroup) -> str:
    return str(placement_group_table(group)["state"])


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_the_group_of_a_killed_actor_is_removed_and_those_of_the_living_stay(cluster: None) -> None:
    living, killed = Maker.remote(), Maker.remote()
    kept, left = ray.get([living.make.remote(), killed.make.remote()])
    ray.kill(killed)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(killed.make.remote())
    assert state(left) == "CREATED"  # what Ray leaves undone
    own = placement_group([{"CPU": 1}])  # finds no CPU until then
    abandoned.remove()
    wait_for(lambda: state(left) == "REMOVED" and state(own) == "CREATED")
    assert state(kept) == "CREATED"
