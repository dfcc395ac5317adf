"""A study of one's own table or images from one command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import command
from PIL import Image

from pipeline import new, params
from pipeline.errors import StudyError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text((ROOT / "params.yaml").read_text())
    Path("studies").mkdir()
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3))
    rows[:, 2] = 200_000 + 50_000 * rows[:, 0]
    np.savetxt("House prices.csv", rows, delimiter=",", header="size,age,price", comments="", fmt="%.3f")


def everything() -> dict[str, str]:
    return {str(path): path.read_text() for path in Path().rglob("*") if path.is_file()}


def test_the_table_gets_a_line_in_the_settings_and_a_study_that_is_selected():
    comments = [line for line in Path("params.yaml").read_text().splitlines() if line.startswith("# The machines")]
    status, said = command("new", "House prices.csv", "--target", "price", "--methods", "mnvi,ensemble")
    assert status == 0 and "60 rows, 2 features, target price" in said and "next: dvc repro" in said
    text = Path("params.yaml").read_text()
    assert "  house-prices: {kind: table, file: House prices.csv, target: price}\n" in text
    assert all(line in text for line in comments)
    read = params.load()
    assert list(read.study.cells) == ["house-prices-mnvi", "house-prices-ensemble"]
    assert str(read.study.results) == "results/house-prices" and read.study.data == ("house-prices",)
    experiment = read.cell("house-prices-mnvi").experiment
    assert experiment.targets == "standardised" and read.datasets["house-prices"].folds == 10
    assert yaml.safe_load(Path("studies/house-prices.yaml").read_text())["study"]["experiments"] == ["house-prices"]


def test_a_column_may_be_named_by_its_number():
    new.start("mine", {"kind": "table", "file": "House prices.csv", "target": 2}, ["mnvi"], Path("params.yaml"))
    assert params.load().datasets["mine"].target == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["House prices.csv", "--target", "prize"], "datasets.house-prices.target: 'prize' is not a column of"),
        (["none.csv", "--target", "price"], "datasets.none.file: there is no none.csv; correct the path"),
        (["House prices.csv", "--target", "price", "--methods", "mnvy"], "did you mean mnvi?"),
        (["House prices.csv", "--target", "price", "--name", "boston"], "datasets.boston exists already; choose"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(arguments, message):
    before = everything()
    status, said = command("new", *arguments)
    assert status == 1 and message in said and "Traceback" not in said
    assert everything() == before


def test_a_second_study_of_the_same_name_is_refused():
    Path("studies/mine.yaml").write_text("study: {}\n")
    before = everything()
    with pytest.raises(StudyError, match=r"studies/mine\.yaml: exists already"):
        new.start("mine", {"kind": "table", "file": "House prices.csv", "target": 2}, ["mnvi"], Path("params.yaml"))
    assert everything() == before


def test_an_index_column_and_tiny_folds_are_warned_about():
    rows = np.column_stack([np.random.default_rng(1).permutation(60), np.random.default_rng(0).normal(size=(60, 2))])
    np.savetxt("rows.csv", rows, delimiter=",", header="id,size,price", comments="", fmt="%.3f")
    status, said = command("new", "rows.csv", "--target", "price")
    assert status == 0 and "warning: rows: column id counts the rows; leave it out of the file" in said
    folds = "warning: rows: 10 folds of 60 rows have 6 test rows each, which tell little; write e.g. `folds: 6`"
    assert said.count(folds) == 1
    status, said = command("prepare", "rows")  # as for a line that somebody wrote by hand
    assert status == 0 and "warning: rows: column id counts" in said and folds in said


def images(folder: str, classes: dict[str, int], size: tuple[int, int], mode: str = "RGB") -> None:
    for name, count in classes.items():
        Path(folder, name).mkdir(parents=True)
        for index in range(count):
            Image.new(mode, size, color=index).save(Path(folder, name, f"{index}.png"))


def test_photographs_get_released_weights_and_a_fifth_is_held_out():
    images("My photos", {"cats": 10, "dogs": 15}, (300, 200))
    status, said = command("new", "My photos/")
    assert status == 0 and "20 images to learn from, 3 of them for validation, 2 classes, photographs" in said
    cell = params.load().cell("my-photos-mnvi")
    assert (cell.experiment.network, cell.experiment.weights) == ("efficientnet_lite0", "efficientnet-lite0")
    assert cell.dataset.size == 256 and list(params.load().study.cells) == ["my-photos-mnvi", "my-photos-deterministic"]
    held_out = {path.resolve() for path in Path("own/my-photos/test").rglob("*.png")}
    learnt = {path.resolve() for path in Path("own/my-photos/train").rglob("*.png")}
    assert len(held_out) == 5 and len(learnt) == 20 and not held_out & learnt


def test_small_grey_squares_are_learnt_from_scratch():
    for part in ("train", "test"):
        images(f"digits/{part}", {"0": 8, "1": 8}, (16, 16), "L")
    status, said = command("new", "digits", "--methods", "mnvi")
    assert status == 0 and "16 images to learn from" in said and "16 x 16 pixels" in said
    cell = params.load().cell("digits-mnvi")
    assert (cell.experiment.network, cell.experiment.weights, cell.dataset.size) == ("resnet20", None, 16)
    assert (cell.dataset.train, cell.dataset.test) == ("digits/train", "digits/test") and not Path("own").exists()


@pytest.mark.parametrize(
    ("given", "network", "weights", "normalisation"),
    [
        (["--network", "torchvision.models:resnet18"], "torchvision.models:resnet18", None, "imagenet"),
        (
            ["--network", "torchvision.models:resnet18", "--weights", "DEFAULT"],
            "torchvision.models:resnet18",
            "DEFAULT",
            "imagenet",
        ),
        (["--weights", "none"], "efficientnet_lite0", None, "efficientnet-lite"),
    ],
)
def test_network_and_weights_can_be_chosen(given, network, weights, normalisation):
    images("photos", {"cats": 5, "dogs": 5}, (300, 200))
    status, said = command("new", "photos", *given)
    experiment = params.load().experiments["photos"]
    assert status == 0, said
    assert (experiment.network, experiment.weights, experiment.normalisation) == (network, weights, normalisation)


@pytest.mark.parametrize(
    ("classes", "arguments", "message"),
    [
        ({"cats": 9}, [], "photos: there is one class, cats, so there is nothing to tell apart"),
        ({"cats": 9, "dogs": 0}, [], "no images in the class dogs; fill or remove"),
        ({}, [], "photos: there are no images in subfolders"),
        ({"cats": 9, "dogs": 2}, [], "photos/dogs: 2 images are too few to hold a fifth of them out"),
        ({"cats": 9, "dogs": 9}, ["--weights", "nothing.pt"], "weights: there is no file nothing.pt"),
        ({"cats": 9, "dogs": 9}, ["--network", "resnet21"], "'resnet21' is not a network for classification"),
    ],
)
def test_a_mistake_with_images_is_named_and_nothing_is_written(classes, arguments, message):
    Path("photos").mkdir()
    images("photos", classes, (300, 200))
    before = sorted(map(str, Path().rglob("*")))
    status, said = command("new", "photos", *arguments)
    assert status == 1 and message in said and "Traceback" not in said
    assert sorted(map(str, Path().rglob("*"))) == before
