import subprocess
import sys

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
def test_a_private_cluster_listens_on_the_loopback_interface():
    # In a process of its own, as Ray reads the setting when it is imported.
    code = (
        "from pipeline import cluster\n"
        "with cluster.connected():\n"
        "    import ray\n"
        "    print(ray.get_runtime_context().gcs_address)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.startswith("127.0.0.1:")


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
