"""A user's own data set: one entry in params.yaml, and the study that has its recipe gets its cells too."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import command
from test_table_arrays import layout, numbers
from tiny_study import enter

from pipeline import params
from pipeline.errors import StudyError
from pipeline.params import selecting

ENTRY = {"kind": "table", "folder": "./mine", "splits": "standard", "recipe": "tiny"}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    layout(Path("mine"), numbers(rows=40), tests=[[0, 5, 7], [1, 2, 9], [3, 4, 30]])
    settings = yaml.safe_load(Path("params.yaml").read_text())
    cells = settings["study"]["cells"]
    settings["study"]["cells"] = {name: cells[name] for name in ("tiny-mnvi", "tiny-ddvi")}
    Path("studies").mkdir()
    Path("studies/small.yaml").write_text(yaml.safe_dump({"study": settings["study"]}, sort_keys=False))
    write(settings, ENTRY)


def write(settings: dict[str, Any], entry: dict[str, Any]) -> None:
    settings["datasets"]["mine"] = entry
    Path("params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def test_the_study_of_its_recipe_gets_cells_with_the_same_methods(study: None) -> None:
    selecting.select("small", Path("params.yaml"), [], None)
    after = params.load()
    assert list(after.study.cells) == ["tiny-mnvi", "tiny-ddvi", "mine-mnvi", "mine-ddvi"]
    assert after.study.data == ("tiny", "mine")
    mine, tiny = after.cell("mine-mnvi"), after.cell("tiny-mnvi")
    assert mine.data == Path("data/mine") and mine.hyperparameters == tiny.hyperparameters
    assert mine.experiment.learning_rate == tiny.experiment.learning_rate


def test_a_study_without_its_recipe_says_so(study: None, capsys: pytest.CaptureFixture[str]) -> None:
    settings = yaml.safe_load(Path("params.yaml").read_text())
    settings["experiments"]["other"] = {**settings["experiments"]["tiny"]}
    write(settings, {**ENTRY, "recipe": "other"})
    selecting.select("small", Path("params.yaml"), [], None)
    said = capsys.readouterr().err
    assert "mine: not in this study, which has no experiment other, its recipe; add it with" in said


@pytest.fixture
def table(study: None) -> list[str]:
    """A CSV file without a word about its recipe, and the methods that it can have."""
    np.savetxt("prices.csv", numbers(rows=40), delimiter=",")
    settings = yaml.safe_load(Path("params.yaml").read_text())
    tiny = settings["experiments"]["tiny"]
    settings["recipes"] = {"table": {key: value for key, value in tiny.items() if key != "data"}}
    settings["datasets"]["prices"] = {"kind": "table", "file": "prices.csv", "target": 0}
    Path("params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return list(tiny["methods"])


def test_a_table_of_ones_own_can_be_added_to_any_study(table: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    selecting.select("small", Path("params.yaml"), [], None)
    assert "prices: not in this study; add it with `select STUDY --add prices`" in capsys.readouterr().err
    assert "prices" not in params.load().study.data
    selecting.select("small", Path("params.yaml"), [], None, ["prices"])
    after = params.load().study
    assert list(after.cells)[-2:] == ["prices-mnvi", "prices-ddvi"] and after.data == ("tiny", "mine", "prices")
    assert "prices" not in capsys.readouterr().err


def test_one_cell_can_be_added_and_kept_alone(table: list[str]) -> None:
    assert "mc_dropout" in table
    selecting.select("small", Path("params.yaml"), ["prices-mc_dropout"], None, ["prices-mc_dropout"])
    assert list(params.load().study.cells) == ["prices-mc_dropout"] and params.load().study.data == ("prices",)


def test_a_cell_that_exists_but_is_not_in_the_study_says_how_to_add_it(table: list[str]) -> None:
    with pytest.raises(StudyError, match="'prices-mnvi' is not a cell of this study; add it with --add prices-mnvi"):
        selecting.select("small", Path("params.yaml"), ["prices-mnvi"], None)


def test_a_misspelt_addition_is_named(table: list[str]) -> None:
    with pytest.raises(StudyError, match=r"--add: 'price' is not an experiment.*did you mean prices\?"):
        selecting.select("small", Path("params.yaml"), [], None, ["price"])


def test_an_experiment_without_the_methods_of_the_study_says_which_it_has(table: list[str]) -> None:
    settings = yaml.safe_load(Path("params.yaml").read_text())
    methods = settings["recipes"]["table"]["methods"]
    settings["recipes"]["table"]["methods"] = {"ensemble": methods["ensemble"]}
    Path("params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    message = r"--add: prices has none of this study's methods \(mnvi, ddvi\); name its cells, e\.g\. prices-ensemble"
    with pytest.raises(StudyError, match=message):
        selecting.select("small", Path("params.yaml"), [], None, ["prices"])


def test_one_of_its_cells_can_be_chosen(study: None) -> None:
    selecting.select("small", Path("params.yaml"), ["mine-ddvi"], "mine-alone")
    assert list(params.load().study.cells) == ["mine-ddvi"] and params.load().study.data == ("mine",)


@pytest.mark.parametrize(
    "entry, message",
    (
        ({**ENTRY, "recipe": "tyni"}, r"datasets\.mine\.recipe: 'tyni' is not in experiments or recipes \(tiny\)"),
        ({**ENTRY, "recipe": 3}, r"datasets\.mine\.recipe: 3"),
    ),
)
def test_a_wrong_recipe_is_named(study: None, entry: dict[str, Any], message: str) -> None:
    write(yaml.safe_load(Path("params.yaml").read_text()), entry)
    with pytest.raises(StudyError, match=message):
        params.load()


def test_a_recipe_beside_an_experiment_of_that_name_is_refused(study: None) -> None:
    settings = yaml.safe_load(Path("params.yaml").read_text())
    settings["experiments"]["mine"] = {**settings["experiments"]["tiny"], "data": "mine"}
    write(settings, ENTRY)
    with pytest.raises(StudyError, match=r"datasets\.mine\.recipe: 'tiny', but experiments\.mine exists"):
        params.load()


@pytest.mark.slow
def test_it_goes_through_all_stages_and_its_deviation_is_over_the_splits(ray_is_up: None, study: None) -> None:
    selecting.select("small", Path("params.yaml"), ["mine-mnvi"], None)
    assert command("prepare", "mine")[0] == 0
    for stage in ("tune", "train", "evaluate"):
        status, said = command(stage, "mine-mnvi")
        assert status == 0, said
    status, said = command("report")
    assert status == 0, said
    records = json.loads(Path("results/report/table1.json").read_text())
    (record,) = [one for one in records if one["cell"] == "mine-mnvi" and one["metric"] == "log_likelihood"]
    scores = json.loads(Path("results/evaluate/mine-mnvi/scores.json").read_text())
    splits = [statistics.fmean(runs) for runs in zip(*scores["per_fold"]["log_likelihood"], strict=True)]
    assert record["data"] == "mine" and record["rows"] == 40 and record["folds"] == 3
    assert record["mean"] == pytest.approx(statistics.fmean(splits))
    assert record["std"] == pytest.approx(statistics.stdev(splits))
    assert "mine (N = 40)" in Path("results/report/index.html").read_text()
