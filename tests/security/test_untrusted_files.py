"""Files that would run code when pickle reads them are refused, and nothing runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tiny_study import cell as tiny_cell
from tiny_study import enter, make_table
from tracking_cases import Cell, client

import mnvi
from pipeline import files, params, tracking
from pipeline.data.imagesets import ImageSet
from pipeline.data.tablesets import load_table
from pipeline.errors import StudyError
from pipeline.images.checkpoints import Checkpoints
from pipeline.regression.cell_networks import Replica
from pipeline.regression.chunks import Chunks
from pipeline.tracking import models


class Attack:
    """Unpickled, it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What an attack would make; shown here that it does so where one is let."""
    path = tmp_path / "attacked"
    pickle.loads(pickle.dumps(Attack(path)))
    path.rmdir()
    return path


def zipped(path: Path, attack: Attack) -> None:
    torch.save({"fingerprint": attack, "state": attack}, path)


def plain(path: Path, attack: Attack) -> None:
    path.write_bytes(pickle.dumps(attack))


FORMS = pytest.mark.parametrize("form", [zipped, plain])


@FORMS
def test_tensors_and_checkpoints(tmp_path: Path, mark: Path, form: Callable[[Path, Attack], None]) -> None:
    path = tmp_path / "checkpoint-00001-0000000.pt"
    form(path, Attack(mark))
    with pytest.raises(StudyError, match=r"checkpoint-00001-0000000\.pt: cannot be read"):
        files.read_tensors(path, "python -m pipeline.train")
    with pytest.raises(StudyError, match="cannot be read"):
        Checkpoints(tmp_path).read(path)
    assert Checkpoints(tmp_path).load() is None
    assert not mark.exists()


@FORMS
def test_results_that_training_goes_on_from(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, form: Callable[[Path, Attack], None]
) -> None:
    enter(tmp_path, monkeypatch)
    chunks = Chunks(tiny_cell("mnvi"), [], [[Replica(0, 0)]], False, tmp_path / "chunks")
    chunks.folder.mkdir()
    form(chunks.path(0), Attack(mark))
    with pytest.raises(StudyError, match=r"networks-00000-00000\.pt: cannot be read"):
        chunks.finished()
    assert not mark.exists()


def test_tables(tmp_path: Path, mark: Path) -> None:
    make_table(tmp_path / "tiny")
    np.save(tmp_path / "tiny" / "x.npy", np.array([Attack(mark)]), allow_pickle=True)
    with pytest.raises(StudyError, match=r"x\.npy: cannot be read .*pipeline\.prepare tiny"):
        load_table(tmp_path / "tiny")
    assert not mark.exists()


@pytest.mark.parametrize("name", ["labels", "images"])
def test_images(tmp_path: Path, mark: Path, name: str) -> None:
    summary = {"name": "x", "kind": "images", "rows": {"test": 1}, "shape": [1, 1, 1], "classes": ["a"]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    for array in ("labels", "images"):
        np.save(tmp_path / f"test_{array}.npy", np.zeros(1, np.int64))
    ImageSet(tmp_path, "test")
    np.save(tmp_path / f"test_{name}.npy", np.array([Attack(mark)]), allow_pickle=True)
    with pytest.raises(StudyError, match=rf"test_{name}\.npy: cannot be read"):
        ImageSet(tmp_path, "test")
    assert not mark.exists()


def test_settings(tmp_path: Path, mark: Path) -> None:
    text = f"study: !!python/object/apply:os.mkdir ['{mark}']\n"
    yaml.unsafe_load(text)
    mark.rmdir()
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(StudyError, match=r"params\.yaml"):
        params.load(tmp_path / "params.yaml")
    with pytest.raises(StudyError, match="not YAML"):
        files.read_yaml(tmp_path / "params.yaml", "python -m pipeline.tune")
    assert not mark.exists()


@pytest.fixture
def logged(folder: Path) -> Path:
    """The folder of a model as MLflow keeps it."""
    with tracking.run(Cell(), "evaluate", state=folder / "work") as run:
        tracking.model(run, mnvi.methods.build("mnvi", mnvi.models.mlp(3, 5)), Cell(), torch.randn(2, 3))
    return Path(client().get_model_version_by_alias("toy-mnvi", "best").source.removeprefix("file://"))


def test_models_in_mlflow(logged: Path, mark: Path) -> None:
    """Loading one runs the code beside it, which is what MLflow is for; its weights and the rest are data only."""
    import mlflow

    assert mlflow.pyfunc.load_model(str(logged)).predict(np.zeros((1, 3)))["std"] > 0
    pickled = [path for path in logged.rglob("*") if path.suffix in (".pkl", ".pickle", ".joblib")]
    assert not pickled
    zipped(logged / "artifacts" / "weights.pt", Attack(mark))
    with pytest.raises(Exception, match="Weights only load failed"):
        mlflow.pyfunc.load_model(str(logged))
    assert not mark.exists()


def test_models_on_their_way_to_mlflow(folder: Path, logged: Path, mark: Path) -> None:
    (saved,) = (folder / "work").glob("model-*")
    shutil.copytree(saved, folder / "saved")
    zipped(folder / "saved" / "example.pt", Attack(mark))
    with pytest.raises(StudyError, match=r"example\.pt: cannot be read"):
        models.save(folder / "saved", folder / "model", "run", "model")
    assert not mark.exists()
