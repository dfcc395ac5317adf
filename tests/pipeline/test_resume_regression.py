"""A stage that is stopped at any moment and started again ends with the numbers of an undisturbed one."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from tiny_study import make_study

pytestmark = pytest.mark.slow

RUNS = 60  # of two folds: two chunks
PATIENCE = 120.0  # seconds


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    make_study(folder, recipe={"epochs": 6, "runs": RUNS})
    assert stage(folder, "tune").wait(PATIENCE) == 0, said(folder)
    return folder


def stage(folder, name, cpus=None):
    """Starts a stage, whose words go to a file, on these CPUs."""
    with open(folder / "said.txt", "a") as said:
        return subprocess.Popen(
            [sys.executable, "-m", f"pipeline.{name}", "tiny-mnvi"],
            cwd=folder,
            env={
                **os.environ,
                "MLFLOW_TRACKING_URI": f"sqlite:///{folder.parent}/mlflow.db",
                "OMP_NUM_THREADS": "1",
            },
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
        )


def said(folder):
    return (folder / "said.txt").read_text()


def weights(folder):
    return torch.load(folder / "results/models/tiny-mnvi/replicas.pt", weights_only=True)["state"]


def chunks(folder):
    return sorted((folder / "work/results/train/tiny-mnvi/chunks").glob("*.pt"))


@pytest.fixture(scope="module")
def undisturbed(study):
    folder = study.with_name("undisturbed")
    shutil.copytree(study, folder)
    process = stage(folder, "train")
    assert process.wait(PATIENCE) == 0, said(folder)
    assert len(chunks(folder)) == 2
    return weights(folder)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_training_goes_on_with_the_same_numbers(study, undisturbed, how):
    folder = study.with_name(how.name)
    shutil.copytree(study, folder)
    # One CPU: the second chunk has not ended when the first has.
    process = stage(folder, "train", cpus={min(os.sched_getaffinity(0))})
    deadline = time.monotonic() + PATIENCE
    while not chunks(folder):
        assert process.poll() is None, said(folder)
        assert time.monotonic() < deadline, "no chunk was finished"
        time.sleep(0.02)
    process.send_signal(how)
    assert process.wait(PATIENCE) != 0
    assert len(chunks(folder)) == 1
    assert not (folder / "results/models/tiny-mnvi/replicas.pt").exists()
    first = chunks(folder)[0].stat().st_mtime_ns

    process = stage(folder, "train")
    assert process.wait(PATIENCE) == 0, said(folder)
    assert chunks(folder)[0].stat().st_mtime_ns == first
    for name, values in weights(folder).items():
        assert torch.equal(values, undisturbed[name]), name
