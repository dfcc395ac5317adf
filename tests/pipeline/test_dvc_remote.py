"""The walk-through of docs/dvc.md: models go to a remote, and come back in a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_study import cell, enter

from pipeline import params, tune
from pipeline.params import tracked
from pipeline.regression import training

ROOT = Path(__file__).parents[2]
STAGE = "train@tiny-deterministic"


def run(*command: str, folder: str | Path = ".") -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    someone = {f"GIT_{role}_{what}": "someone" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **someone, "PATH": path, "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the results of a small study, as `dvc repro train@…` leaves it."""
    folder = tmp_path / "study"
    folder.mkdir()
    cells = {"tiny-deterministic": {"experiment": "tiny", "data": "tiny", "method": "deterministic"}}
    enter(folder, monkeypatch, cells=cells)
    for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, name)
    one = cell("deterministic")
    tracked.write_settings(params.load())
    tune.leave_unsearched(one)
    training.run(one)
    run("git", "init", "--quiet")
    run("dvc", "init", "--quiet")
    run("dvc", "commit", "--force", STAGE)
    return folder


@pytest.mark.slow
def test_models_are_pushed_and_pulled(trained: Path, tmp_path: Path) -> None:
    run("dvc", "remote", "add", "--default", "store", str(tmp_path / "store"))
    run("dvc", "push", STAGE)
    run("git", "add", "--all")
    run("git", "commit", "--quiet", "--message", "Trained")
    run("git", "tag", "--annotate", "models@v1.0.0", "--message", "The first models")
    run("git", "clone", "--quiet", str(trained), str(tmp_path / "clone"))
    clone = tmp_path / "clone"
    model = Path("results/models/tiny-deterministic/replicas.pt")
    assert not (clone / model).exists()
    run("dvc", "pull", STAGE, folder=clone)
    pulled, made = (torch.load(path / model, weights_only=True) for path in (clone, trained))
    assert pulled["state"].keys() == made["state"].keys()
    assert all(torch.equal(pulled["state"][name], value) for name, value in made["state"].items())

    run("dvc", "artifacts", "get", str(trained), "models", "--rev", "v1.0.0", "--out", "got", folder=tmp_path)
    assert (tmp_path / "got/tiny-deterministic/replicas.pt").read_bytes() == (clone / model).read_bytes()
