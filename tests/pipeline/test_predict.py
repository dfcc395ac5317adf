"""Predictions with a registered model, from the command line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import command
from PIL import Image
from torch import nn
from tracking_cases import Cell, Experiment

import mnvi
from pipeline import params, predict, tracking
from pipeline.data import augmentation
from pipeline.data.shard_writing import scaled
from pipeline.tracking import registered

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())


def register(cell: Cell, net: nn.Module, example: torch.Tensor, **settings: Any) -> None:
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    with tracking.run(cell, "train", state=Path("work/state")) as run:
        tracking.model(run, net.eval(), cell, example, **settings)


@pytest.fixture
def table() -> np.ndarray:
    """Rows of a table whose model is registered as that of boston-mnvi."""
    cell = Cell(Experiment(name="boston"), method_arguments={"prior_variance": 1.0})
    net = mnvi.methods.build("mnvi", lambda: mnvi.models.mlp(3, 5), prior_variance=1.0)
    inputs, targets = {"mean": [0.0, 1.0, 2.0], "std": [1.0, 1.0, 2.0]}, {"mean": 100.0, "std": 10.0}
    register(cell, net, torch.randn(4, 3), inputs=inputs, targets=targets, columns=["a", "b", "c"])
    return np.random.default_rng(0).normal(size=(20, 3))


def predicted(*arguments: str) -> list[dict[str, str]]:
    status, said = command("predict", *arguments, "--output", "out.csv")
    assert status == 0, said
    with Path("out.csv").open() as file:
        return list(csv.DictReader(file))


def test_columns_are_matched_by_name_whatever_their_order(table):
    np.savetxt("in.csv", table, delimiter=",", header="a,b,c", comments="")
    shuffled = np.column_stack([table[:, 2], np.zeros(20), table[:, 0], table[:, 1]])
    np.savetxt("other.csv", shuffled, delimiter=",", header="c,price,a,b", comments="")
    rows = predicted("boston-mnvi", "in.csv")
    assert rows == predicted("boston-mnvi", "other.csv")
    assert list(rows[0]) == ["row", "mean", "std", "aleatoric", "epistemic"] and len(rows) == 20
    answer = registered.load("boston-mnvi", "").predict(table)
    assert [float(row["mean"]) for row in rows] == pytest.approx(answer["mean"].tolist(), rel=1e-5)


def test_the_least_certain_rows_are_referred(table):
    np.savetxt("in.csv", table, delimiter=",", header="a,b,c", comments="")
    rows = predicted("boston-mnvi", "in.csv", "--refer", "0.2")
    referred = [float(row["std"]) for row in rows if row["refer"] == "yes"]
    kept = [float(row["std"]) for row in rows if row["refer"] == "no"]
    assert len(referred) == 4 and min(referred) >= max(kept)
    bound = sorted(referred)[1]
    single = predicted("boston-mnvi", "in.csv", "--refer-above", f"{bound + 1e-3}")
    assert [float(row["std"]) > bound + 1e-3 for row in single] == [row["refer"] == "yes" for row in single]
    assert {row["refer"] for row in single} == {"yes", "no"}


@pytest.mark.parametrize("given", [["--refer-above", "-1"], ["--refer-above", "x"], ["--refer", "2"]])
def test_a_bound_that_makes_no_sense_is_refused(given, capsys):
    status, said = command("predict", "boston-mnvi", "in.csv", *given)
    assert status == 2 and f"{given[1]} is not" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,d\n1,2,3\n", "in.csv: 'c' is not a column of this file, but the model needs it (a, b, d)"),
        ("1,2\n3,4\n", "in.csv: 2 columns, but the model takes 3 features; leave the target out"),
        ("a,b,c\n1,two,3\n", "in.csv: line 2"),
    ],
)
def test_a_table_that_does_not_fit_is_named(table, content, message):
    Path("in.csv").write_text(content)
    status, said = command("predict", "boston-mnvi", "in.csv")
    assert status == 1 and message in said and "Traceback" not in said


def test_a_cell_without_a_model_says_which_command_makes_it():
    Path("in.csv").write_text("1,2\n")
    status, said = command("predict", "yacht-mnvi", "in.csv")
    assert status == 1 and "no model yacht-mnvi is registered" in said
    assert "run `python -m pipeline.train yacht-mnvi` first" in said


def test_images_of_a_folder_get_class_names(tmp_path):
    assert params.load().cell("lenet-mnist-mnvi").kind == "classification"
    cell = Cell(Experiment(name="lenet-mnist", network="lenet"), "mnvi", "classification")
    net = mnvi.methods.build("mnvi", lambda: mnvi.models.lenet(10, 1))
    names = [f"digit {k}" for k in range(10)]
    example = torch.randint(0, 256, (3, 1, 28, 28), dtype=torch.uint8)
    register(cell, net, example, inputs={"mean": [33.3], "std": [78.6]}, classes=names)
    (tmp_path / "photos").mkdir()
    Image.fromarray(example[0, 0].numpy()).save("photos/a.png")
    Image.fromarray(example[1, 0].numpy()).convert("RGB").resize((56, 56)).save("photos/b.jpg")
    Path("photos/notes.txt").write_text("no image")
    rows = predicted("lenet-mnist-mnvi", "photos")
    assert [row["image"] for row in rows] == ["photos/a.png", "photos/b.jpg"]
    (row,) = predicted("lenet-mnist-mnvi", "photos/a.png")
    answer = registered.load("lenet-mnist-mnvi", "").predict(example[:1].numpy())
    assert row["class"] == names[answer["label"][0]]
    assert float(row["probability"]) == pytest.approx(answer["probs"].max(), rel=1e-5)
    Path("photos/broken.png").write_text("no image")
    status, said = command("predict", "lenet-mnist-mnvi", "photos")
    assert status == 1 and "photos/broken.png: cannot be read as an image" in said


@pytest.mark.parametrize("size", [(400, 300), (301, 450), (256, 256)])
def test_a_photograph_is_cut_as_for_evaluation(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    stored = torch.from_numpy(np.array(scaled(image, 256))).permute(2, 0, 1)
    expected = augmentation.as_asked("imagenet-release", [stored])[0]
    found = predict._middle(image, 256, (224, 224))
    assert torch.equal(torch.from_numpy(np.array(found)).permute(2, 0, 1), expected)


def test_any_image_gets_the_size_of_the_model() -> None:
    assert predict._middle(Image.new("RGB", (60, 40)), 32, (32, 32)).size == (32, 32)
    assert predict._middle(Image.new("L", (60, 40)), 0, (28, 28)).size == (28, 28)
