"""A project's folder that was moved: its models are found again."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
import tracking_cases
from tracking_cases import Cell

import mnvi
from pipeline import tracking
from pipeline.errors import StudyError
from pipeline.tracking import registered, relocation, store


def test_models_are_found_after_a_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    old, new = tmp_path / "old place", tmp_path / "new place"
    old.mkdir()
    monkeypatch.chdir(old)
    cell = Cell(method_arguments={"prior_variance": 1.0})
    net = mnvi.methods.build("mnvi", lambda: mnvi.models.mlp(3, 5), prior_variance=1.0).eval()
    with tracking.run(cell, "train", state=Path("work/state")) as run:
        tracking.model(run, net, cell, torch.randn(4, 3))
    expected = registered.load("toy-mnvi", "").predict(torch.zeros(2, 3).numpy())["mean"]
    bucket = "s3://bucket/mlartifacts/1"
    with closing(sqlite3.connect("mlflow.db")) as connection, connection:
        connection.execute(
            "INSERT INTO experiments (name, artifact_location, lifecycle_stage) VALUES ('far', ?, 'active')", [bucket]
        )
    shutil.move(old, new)
    monkeypatch.chdir(new)
    assert relocation.relocate() > 3
    assert (registered.load("toy-mnvi", "").predict(torch.zeros(2, 3).numpy())["mean"] == expected).all()
    assert not old.exists() and relocation.relocate() == 0
    assert tracking_cases.client().get_experiment_by_name("far").artifact_location == bucket


def test_a_server_or_an_empty_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    with pytest.raises(StudyError, match="a server keeps its own artifacts"):
        relocation.relocate()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(StudyError, match="there is no such database; run this in the project's folder"):
        relocation.relocate()
    assert store.database_file(store.address()) == tmp_path / "mlflow.db"
