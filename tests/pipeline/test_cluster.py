import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray
from commands import PATIENCE

from pipeline import cluster, console, private_ray
from pipeline.errors import StudyError
from pipeline.storage import Remote

pytestmark = pytest.mark.usefixtures("ray_is_down")

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


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


TERMINATED = """
import ray
from pipeline import cluster, console

def main():
    with cluster.connected():
        endless = ray.remote(lambda: __import__("time").sleep(600)).remote()
        try:
            print("ready", flush=True)
            ray.get(endless)
        finally:
            print("in order", flush=True)

console.run(main)
"""


@pytest.mark.slow
def test_a_stage_that_is_terminated_while_it_waits_for_ray_ends_in_order(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with tempfile.TemporaryDirectory() as folder:  # Ray's sockets need a short path
        monkeypatch.setenv("RAY_TMPDIR", folder)
        stage = subprocess.Popen(
            [sys.executable, "-c", TERMINATED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert stage.stdout is not None and stage.stdout.readline() == "ready\n"
        stage.terminate()
        out, err = stage.communicate(timeout=PATIENCE)
        assert (stage.returncode, out) == (console.INTERRUPTED, "in order\n"), err
        assert "terminated; run the same command to continue" in err and "SIGTERM" not in err
        assert os.listdir(folder) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_an_address_where_nobody_answers_is_named(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(StudyError, match=f"RAY_ADDRESS={address}: no Ray cluster answers"), cluster.connected():
        pytest.fail("connected to nothing")


def test_a_folder_that_is_too_deep_for_rays_sockets_is_named(monkeypatch, tmp_path):
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(deep))
    with (
        pytest.raises(StudyError, match=r"Ray cannot start there .* set RAY_TMPDIR to a writable folder"),
        cluster.connected(),
    ):
        pytest.fail("started where it cannot")
    assert not ray.is_initialized() and not list(deep.iterdir())


def test_a_machine_that_is_too_busy_for_ray_is_told_without_a_traceback(monkeypatch):
    tried = []

    def init(**_):
        tried.append(len(tried))
        raise Exception("The current node timed out during startup.")  # as Ray does

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(StudyError, match=r"Ray did not start .*timed out.* run the same command"), cluster.connected():
        pytest.fail("started")
    assert len(tried) == private_ray.ATTEMPTS


@pytest.mark.slow
def test_ray_that_does_not_come_up_at_once_is_started_again_without_what_it_left(monkeypatch, capfd):
    left, start = [], ray.init

    def init(_temp_dir, **settings):
        if left:
            return start(_temp_dir=_temp_dir, **settings)
        left.append(subprocess.Popen([*SLEEPER, f"--session-dir={_temp_dir}/session"]))
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    with cluster.connected():
        assert ray.is_initialized()
        assert left[0].wait(PATIENCE) == -signal.SIGKILL
    assert "Ray did not start (The current node timed out during startup.); trying again" in capfd.readouterr().err


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


def scaling_up(monkeypatch, *looks):
    """A cluster whose nodes have these CPUs at each look; returns what the autoscaler was asked for."""
    asked, cpus = [], list(looks)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr(cluster, "nodes", lambda: [{"CPU": cpus.pop(0) if len(cpus) > 1 else cpus[0]}])
    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", lambda bundles: asked.append(bundles))
    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)
    return asked


def test_a_cluster_that_still_scales_up_is_waited_for(monkeypatch, capfd):
    asked = scaling_up(monkeypatch, 0.0, 0.0, 2.0, 4.0)
    assert cluster.grown({"CPU": 2.0}, 2) == [{"CPU": 4.0}]
    assert "no room for 4 CPU yet; waiting for more nodes for up to 300 s (MNVI_CLUSTER_WAIT)" in capfd.readouterr().err
    assert asked == [[{"CPU": 2.0}] * 2, []], "an autoscaler must hear of the need, and of its end"


def test_a_cluster_that_does_not_grow_is_waited_for_as_long_as_was_said(monkeypatch):
    scaling_up(monkeypatch, 1.0)
    monkeypatch.setenv("MNVI_CLUSTER_WAIT", "0.01")
    assert cluster.grown({"CPU": 2.0}, 1) == [{"CPU": 1.0}]


@pytest.mark.parametrize("variables", [{"MNVI_CLUSTER_WAIT": "0"}, {"RAY_ADDRESS": ""}], ids=["no patience", "own Ray"])
def test_nobody_waits_in_vain(monkeypatch, variables):
    asked = scaling_up(monkeypatch, 1.0)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cluster.grown({"CPU": 2.0}, 1) == [{"CPU": 1.0}] and not asked


@pytest.mark.parametrize("given", ["soon", "-1", "inf"])
def test_a_patience_that_is_no_number_of_seconds_is_named(monkeypatch, given):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setenv("MNVI_CLUSTER_WAIT", given)
    with pytest.raises(StudyError, match=f"MNVI_CLUSTER_WAIT={given}: expected seconds, 0 or more"):
        cluster.patience()
