"""The real recipes of Table 2 train and validate, each on a few made-up images of the real shape."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from image_study import make_job
from photos import write_photos

from pipeline.images import job as jobs
from pipeline.images import loop
from pipeline.images.group import Group
from pipeline.params import Cell, selecting
from pipeline.params.reading import parse, read
from pipeline.prepare import prepare

PROJECT = Path(__file__).parents[3]
RAW = parse(PROJECT / "params.yaml")
SHAPES = {"mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10), "cifar100": ((3, 32, 32), 100)}


def cells(study: str) -> dict[str, Cell]:
    """The cells of images that a study has, under their names."""
    whole = selecting.expanded(parse(PROJECT / f"studies/{study}.yaml")["study"], RAW)
    return {cell.name: cell for cell in read({**RAW, "study": whole}).cells() if cell.kind == "classification"}


CELLS = {**cells("images"), **cells("cifar")}


def write_images(folder: Path, shape: tuple[int, ...], classes: int) -> None:
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    for part in ("train", "test"):
        np.save(folder / f"{part}_images.npy", numbers.integers(0, 256, (6, *shape), dtype=np.uint8))
        np.save(folder / f"{part}_labels.npy", np.arange(6))
    np.save(folder / "train_index.npy", np.arange(4))
    np.save(folder / "validation_index.npy", np.arange(4, 6))
    summary = {
        "name": folder.name,
        "kind": "images",
        "digest": "0" * 64,
        "source": "made up",
        "rows": {"train": 6, "test": 6},
        "validation": 2,
        "classes": [str(number) for number in range(classes)],
        "shape": list(shape),
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def write_data(cell: Cell) -> None:
    if cell.dataset.name in SHAPES:
        write_images(cell.data, *SHAPES[cell.dataset.name])
        return
    for part in (cell.dataset.train, cell.dataset.test):
        write_photos(Path(str(part)), 2, 256, (256, 300))
    prepare(replace(cell.dataset, validation=2), "stop")


@pytest.mark.parametrize("name", CELLS)
def test_a_recipe_trains_and_validates(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MNVI_DATA_MIRROR", raising=False)
    cell = CELLS[name]
    write_data(cell)
    job = make_job(replace(cell, experiment=replace(cell.experiment, epochs=1)))
    before = jobs.objective(job).net.state_dict()
    position = loop.run(job, Group())
    (epoch,) = position.history
    assert position.finished and math.isfinite(epoch["loss"]) and math.isfinite(epoch["validation_nll"])
    assert (epoch["kl"] > 0) == name.split("-")[2].startswith(("mnvi", "mfvi"))
    weights = {key: value for key, value in position.best_weights.items() if key.endswith("weight")}
    assert not [key for key, value in weights.items() if torch.equal(value, before[key])]
