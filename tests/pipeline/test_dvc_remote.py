"""The commands of docs/dvc.md: models go to a remote, and come back in a clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_study import cell, enter

from pipeline import params, tune
from pipeline.params import tracked
from pipeline.regression import training

ROOT = Path(__file__).parents[2]
CELL = "tiny-deterministic"


def blocks(heading: str) -> list[str]:
    """The commands below a heading of the page, block by block."""
    (section,) = re.findall(
        rf"^## {heading}.*?(?=^## |\Z)", (ROOT / "docs/dvc.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return re.findall(r"(?:^ {4}.+\n)+", section, re.MULTILINE)


def run(*command: str, folder: str | Path = ".") -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    someone = {f"GIT_{role}_{what}": "someone" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **someone, "PATH": path, "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with the results of a small study, as `dvc repro train@…` leaves it."""
    folder = tmp_path / "study"
    folder.mkdir()
    cells = {"tiny-deterministic": {"experiment": "tiny", "data": "tiny", "method": "deterministic"}}
    enter(folder, monkeypatch, cells=cells)
    for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, name)
    run("git", "init", "--quiet", "--initial-branch", "main")
    run("dvc", "init", "--quiet")
    run("git", "add", "params.yaml", "dvc.yaml", ".dvcignore", ".gitignore", ".dvc")
    run("git", "commit", "--quiet", "--message", "The project")
    run("git", "clone", "--quiet", "--bare", ".", str(tmp_path / "mnvi.git"))
    run("git", "remote", "add", "origin", str(tmp_path / "mnvi.git"))
    one = cell("deterministic")
    tracked.write_settings(params.load())
    tune.leave_unsearched(one)
    training.run(one)
    run("dvc", "commit", "--force", f"train@{CELL}")
    return folder


@pytest.fixture
def follow(tmp_path: Path) -> Callable[[str, Path], str]:
    """Runs commands of the page with this study's cell, repository and remote in place of the page's."""
    names = {
        "/mnt/shared/mnvi-store": str(tmp_path / "store"),
        "REPOSITORY": str(tmp_path / "mnvi.git"),
        "boston-mnvi": CELL,
    }

    def run_block(commands: str, folder: Path) -> str:
        for given, here in names.items():
            commands = commands.replace(given, here)
        return run("bash", "-ec", commands, folder=folder)

    return run_block


@pytest.mark.slow
def test_models_are_pushed_and_pulled(trained: Path, tmp_path: Path, follow: Callable[[str, Path], str]) -> None:
    send, fetch = blocks("Models travel")
    follow(send, trained)
    other = tmp_path / "other"
    other.mkdir()
    follow(fetch, other)
    model = Path(f"results/models/{CELL}/replicas.pt")
    pulled, made = (torch.load(path / model, weights_only=True) for path in (other / "mnvi", trained))
    assert pulled["state"].keys() == made["state"].keys()
    assert all(torch.equal(pulled["state"][name], value) for name, value in made["state"].items())

    (versions,) = blocks("Models by version")
    tag, get = versions.strip().splitlines()
    follow(tag, trained)
    follow(get, other)
    assert (other / f"models/{CELL}/replicas.pt").read_bytes() == (trained / model).read_bytes()
