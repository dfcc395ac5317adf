import pytest
import ray

from pipeline import cluster
from pipeline.errors import StudyError


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
