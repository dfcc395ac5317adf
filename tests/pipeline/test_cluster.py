from pathlib import Path

import pytest
import ray

from pipeline import cluster
from pipeline.errors import StudyError
from pipeline.storage import Remote


@pytest.mark.slow
def test_a_local_cluster_runs_tasks_is_shared_by_inner_blocks_and_ends():
    with cluster.connected():
        address = ray.get_runtime_context().gcs_address
        assert cluster.cpus() >= 1
        with cluster.connected():
            assert ray.get_runtime_context().gcs_address == address
        assert ray.is_initialized(), "the inner block ended what the outer one had started"
    assert not ray.is_initialized()


@pytest.mark.slow
def test_an_error_ends_the_cluster():
    with pytest.raises(KeyboardInterrupt), cluster.connected():
        raise KeyboardInterrupt
    assert not ray.is_initialized()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_an_address_where_nobody_answers_is_named(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(StudyError, match=f"RAY_ADDRESS={address}: no Ray cluster answers"), cluster.connected():
        pytest.fail("connected to nothing")


def nodes(*addresses: str, alive: bool = True) -> list[dict[str, object]]:
    return [{"NodeID": address, "NodeManagerAddress": address, "Alive": alive} for address in addresses]


def test_a_node_that_does_not_see_the_folder_of_checkpoints_is_named(tmp_path, monkeypatch):
    probes = []

    def looks(asked, probe):
        probes.append(probe)
        return [(node["NodeID"], node["NodeID"] == "10.0.0.1" and probe.exists()) for node in asked]

    monkeypatch.setattr(ray, "nodes", lambda: nodes("10.0.0.1", "10.0.0.2") + nodes("10.0.0.3", alive=False))
    monkeypatch.setattr(cluster, "_looks", looks)
    with pytest.raises(StudyError, match=rf"MNVI_STORAGE: the cluster's 10\.0\.0\.2 does not see {tmp_path}/state "):
        cluster.check_shared(tmp_path / "state")
    assert probes[0].parent == tmp_path / "state" and not probes[0].exists()


def test_a_folder_that_all_nodes_see_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: nodes("10.0.0.1", "10.0.0.2"))
    monkeypatch.setattr(cluster, "_looks", lambda asked, probe: [(node["NodeID"], probe.exists()) for node in asked])
    cluster.check_shared(tmp_path / "state")


@pytest.mark.parametrize(
    ("addresses", "place"), [(["10.0.0.1"], Path("state")), (["10.0.0.1", "10.0.0.2"], Remote("s3://bucket/state"))]
)
def test_one_node_and_s3_are_not_asked(monkeypatch, addresses, place):
    monkeypatch.setattr(ray, "nodes", lambda: nodes(*addresses))
    monkeypatch.setattr(cluster, "_looks", lambda *_: pytest.fail("nodes were asked"))
    cluster.check_shared(place)
