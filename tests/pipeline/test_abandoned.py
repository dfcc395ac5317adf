"""Placement groups of this study whose makers are dead are removed, and no others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from commands import PATIENCE
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

from pipeline import abandoned


@pytest.fixture
def cluster(ray_is_down: None) -> Iterator[None]:
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, namespace=abandoned.namespace())
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
    own = placement_group([{"CPU": 2}])  # does not find two CPUs until then
    abandoned.remove()
    wait_for(lambda: state(left) == "REMOVED" and state(own) == "CREATED")
    assert state(kept) == "CREATED"


TENANT = """
import sys
import ray
from ray.util.placement_group import placement_group

@ray.remote(num_cpus=0)
class Maker:
    def make(self):
        group = placement_group([{"CPU": 1}])
        group.wait(60)
        return group

ray.init(address=sys.argv[1], namespace=sys.argv[2] or None, log_to_driver=False)
maker = Maker.remote()
group = ray.get(maker.make.remote())
ray.kill(maker)
try:
    ray.get(maker.make.remote())
except ray.exceptions.RayActorError:
    print(group.id.hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("namespace", "left"), [("another study", "CREATED"), ("", "CREATED"), (None, "REMOVED")])
def test_the_groups_of_other_tenants_stay_though_their_makers_are_dead(
    cluster: None, namespace: str | None, left: str
) -> None:
    """None: another stage of this study, whose groups are removed."""
    where = ray.get_runtime_context().gcs_address
    arguments = [where, abandoned.namespace() if namespace is None else namespace]
    tenant = subprocess.Popen(
        [sys.executable, "-c", TENANT, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert tenant.stdout is not None
        made = tenant.stdout.readline().strip()
        assert made and placement_group_table()[made]["state"] == "CREATED"
        killed = Maker.remote()
        own = ray.get(killed.make.remote())
        ray.kill(killed)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(killed.make.remote())
        abandoned.remove()
        wait_for(lambda: state(own) == "REMOVED" and placement_group_table()[made]["state"] == left)
    finally:
        tenant.kill()
        tenant.communicate()


def test_the_stages_of_a_study_share_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MNVI_JOB", raising=False)
    found = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(abandoned.namespace())
    monkeypatch.setenv("MNVI_STORAGE", "s3://bucket/study")
    for job in ("results/tune/cell/1", "results/train/other/2", "results-smoke/train/other/2"):
        monkeypatch.setenv("MNVI_JOB", job)
        found.append(abandoned.namespace())
    assert found[2] == found[3] and len(set(found)) == 4
