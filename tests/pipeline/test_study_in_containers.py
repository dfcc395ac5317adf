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
# Inside: two containers one after the other, on a cluster that says nothing to MLflow.
SUBMITS = """
import subprocess, sys
from tools import ray_nodes

away = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1", "MNVI_TRACKING_WAIT": "0"}
submit = [sys.executable, "-W", "ignore", "-m", "ray.scripts.scripts", "job", "submit"]
variables = dict(pair.split("=", 1) for pair in sys.argv[1].split())
with ray_nodes.cluster(further=0, variables={**away, **variables}) as nodes:
    for folder in sys.argv[2:]:
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


@pytest.mark.slow
def test_a_submitted_make_study_ends_well_and_the_next_container_has_nothing_to_do(tmp_path: Path) -> None:
    try:
        room.check()
    except room.NoRoom as reason:
        pytest.skip(str(reason))
    containers = [container(tmp_path / name) for name in ("first", "second")]
    table = tmp_path / "table.csv"
    table.write_text("".join(f"{row % 7},{row % 5},{row % 3},{row},{row % 7 + row % 3}\n" for row in range(60)))
    for folder in containers:
        write_params(folder / "params.yaml", table)
    (tmp_path / "home").mkdir()
    writable = [f"mount --bind {place} {place}" for place in ("/tmp", "/dev", tmp_path)]
    script = [
        "set -e",
        *writable,
        "mount -o remount,bind,ro /",
        *(line for folder in containers for line in mounts(folder, tmp_path / "volumes")),
        'exec "$@"',
    ]
    variables = re.findall(r"DVC_\w+=\S+", " ".join(arguments for name, arguments in dockerfile() if name == "ENV"))
    inside = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", "\n".join(script)]
    done = subprocess.run(
        [*inside, "sh", sys.executable, "-c", SUBMITS, " ".join(variables), *map(str, containers)],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (set(re.findall(r"Running stage '(\w+)", said)) for said in done.stdout.split("container ")[1:])
    assert first == {"settings", "prepare", "ood", "tune", "train", "evaluate", "report"}
    assert second == set(), "dvc.lock has died with the first container"
    assert (tmp_path / "volumes/results/report/index.html").exists()
