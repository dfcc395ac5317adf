"""A study of one's own table from one command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import command

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
