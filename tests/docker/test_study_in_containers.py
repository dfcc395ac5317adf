"""`make study` as a job on compose's head: the image's files, a read-only root file system, and compose's volumes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_study
import yaml
from docker_files import ROOT, compose, dockerfile, lay_out

from tools.faults import room

HOME = "/opt/mnvi"  # of the project in the image
PATIENCE = 1500.0  # seconds: the machine may be busy
RUNS = " && ".join(arguments for name, arguments in dockerfile() if name == "RUN")
HEAD = compose()["services"]["head"]
# Inside, for one container after the other: a stage by DVC alone, and the study on a cluster that tells MLflow nothing.
STAGE = """
import subprocess, sys

for folder in sys.argv[1:]:
    print(f"container {folder}", flush=True)
    subprocess.run(["make", "lockfile"], cwd=folder, check=True)
    subprocess.run([".venv/bin/python", "-m", "dvc", "repro", "settings"], cwd=folder, check=True)
"""
SUBMITS = """
import subprocess, sys
from tools import ray_nodes

away = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1", "MNVI_TRACKING_WAIT": "0"}
patient = {"RAY_raylet_start_wait_time_s": "600"}
submit = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "job", "submit"]
with ray_nodes.cluster(further=0, variables={**away, **patient}) as nodes:
    for folder in sys.argv[1:]:
        print(f"container {folder}", flush=True)
        command = [*submit, "--address", nodes.http, "--", "make", "-C", folder, "study"]
        subprocess.run(command, env=nodes.environment, check=True)
"""


def container(folder: Path) -> Path:
    """A new one, as the Dockerfile and the params.yaml that compose mounts make it."""
    lay_out(folder)
    places = re.search(r"install --directory (?:--\S+ )*([^&]+)", RUNS)
    link = re.search(r"ln --symbolic \S+ \S+", RUNS)
    without_git = re.search(r"dvc config [^&]+", RUNS)
    assert places and link and without_git
    for place in places[1].split():
        (folder / place).mkdir(parents=True, exist_ok=True)
    subprocess.run(shlex.split(link[0]), cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", *shlex.split(without_git[0])], cwd=folder, check=True)
    (folder / ".venv").mkdir()
    for name in ("bin", "lib"):
        (folder / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder / ".venv")
    (folder / ".venv/.installed").touch()
    return folder


def write_params(path: Path, table: Path) -> None:
    one = {"tiny-mnvi": {"experiment": "tiny", "data": "tiny", "method": "mnvi"}}
    tiny_study.write_params(path, recipe={"epochs": 1, "runs": 1, "milestones": [], "kappa": {0: 1.0}}, cells=one)
    settings = yaml.safe_load(path.read_text())
    settings["datasets"]["tiny"] = {"kind": "table", "file": str(table), "target": 4, "splits": "kfold", "folds": 2}
    path.write_text(yaml.safe_dump(settings, sort_keys=False))


def mounts(folder: Path, volumes: Path) -> list[str]:
    """What is read-only, and what lies on it: named volumes are shared by containers, the rest is each one's own."""
    lines = [f"mount --bind {folder} {folder}", f"mount -o remount,bind,ro {folder}"]
    for volume in HEAD["volumes"]:
        source, _, place = volume.removesuffix(":ro").rpartition(":")
        if place.startswith(f"{HOME}/") and re.fullmatch(r"\w+", source):
            (volumes / source).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --bind {volumes / source} {folder}{place.removeprefix(HOME)}")
    for place in HEAD["tmpfs"]:
        path = place.partition(":")[0]
        if path.startswith(f"{HOME}/"):
            lines.append(f"mount -t tmpfs none {folder}{path.removeprefix(HOME)}")
    return lines


@pytest.fixture
def containers(tmp_path: Path) -> list[Path]:
    try:
        room.check()
    except room.NoRoom as reason:
        pytest.skip(str(reason))
    table = tmp_path / "table.csv"
    table.write_text("".join(f"{row % 7},{row % 5},{row % 3},{row},{row % 7 + row % 3}\n" for row in range(60)))
    made = [container(tmp_path / name) for name in ("first", "second")]
    for folder in made:
        write_params(folder / "params.yaml", table)
    return made


def stages(script: str, containers: list[Path], folder: Path) -> list[set[str]]:
    """Those that DVC runs in each of the containers, of which the folder has the volumes."""
    (folder / "home").mkdir()
    mounted = [
        "set -e",
        *(f"mount --bind {place} {place}" for place in ("/tmp", "/dev", folder)),
        "mount -o remount,bind,ro /",
        *(line for one in containers for line in mounts(one, folder / "volumes")),
        'exec "$@"',
    ]
    settings = " ".join(arguments for name, arguments in dockerfile() if name == "ENV")
    of_image = dict(pair.split("=") for pair in re.findall(r"DVC_\w+=\S+", settings))
    paths = {"HOME": str(folder / "home"), "PATH": f"{containers[0]}/.venv/bin:{os.environ['PATH']}"}
    inside = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    done = subprocess.run(
        [*inside, "sh", "-c", "\n".join(mounted), "sh", sys.executable, "-c", script, *map(str, containers)],
        cwd=ROOT,
        env={**os.environ, **paths, **of_image, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [set(re.findall(r"Running stage '(\w+)", said)) for said in done.stdout.split("container ")[1:]]


def test_the_next_container_knows_what_the_one_before_has_run(containers: list[Path], tmp_path: Path) -> None:
    assert stages(STAGE, containers, tmp_path) == [{"settings"}, set()]
    assert (tmp_path / "volumes/work/dvc.lock").exists()


@pytest.mark.soak
def test_a_submitted_make_study_ends_well_and_the_next_container_has_nothing_to_do(
    containers: list[Path], tmp_path: Path
) -> None:
    everything = {"settings", "prepare", "ood", "tune", "train", "evaluate", "report"}
    assert stages(SUBMITS, containers, tmp_path) == [everything, set()]
    assert (tmp_path / "volumes/results/report/index.html").exists()
