"""Training that is stopped at any moment and started again ends with the numbers of an undisturbed one."""

import shutil
from pathlib import Path

import pytest
import torch
from commands import WAYS, command, disturb, one_cpu, tracked
from tiny_study import make_study

# `make test` breaks a training of tables off and resumes it in test_broken_disk.py, stops stages in every way in
# test_stopped_images.py and test_stopped_stages.py, and keeps finished chunks in test_regression_training.py.
pytestmark = pytest.mark.soak

RUNS = 60  # of two folds: two chunks


@pytest.fixture(scope="module")
def undisturbed(ray_is_up, new_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch, new_store)
        assert command("train", "tiny-mnvi")[0] == 0
        assert len(chunks()) == 2
        return weights()


def enter(folder, patch, store):
    patch.chdir(folder)
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(store, "mlflow.db")
    make_study(folder, recipe={"epochs": 6, "runs": RUNS})
    assert command("tune", "tiny-mnvi")[0] == 0


def weights():
    return torch.load("results/models/tiny-mnvi/replicas.pt", weights_only=True)["state"]


def chunks():
    return sorted(Path("work/results/train/tiny-mnvi/progress").glob("*.pt"))


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_training_goes_on_with_the_same_numbers(tmp_path, monkeypatch, new_store, undisturbed, way):
    enter(tmp_path, monkeypatch, new_store)
    with one_cpu():  # the second chunk has not ended when the first has
        disturb(way, chunks, "train", "tiny-mnvi", worker="_train_chunk")
    if way != "worker killed":
        assert tracked()["train mnvi"] == ("RUNNING" if way == "driver killed" else "KILLED")
        assert len(chunks()) == 1
        assert not Path("results/models/tiny-mnvi/replicas.pt").exists()
        first = chunks()[0].stat().st_mtime_ns
        assert command("train", "tiny-mnvi")[0] == 0
        assert chunks()[0].stat().st_mtime_ns == first
    assert tracked() == {"train mnvi": "FINISHED"}
    for name, values in weights().items():
        assert torch.equal(values, undisturbed[name]), name
