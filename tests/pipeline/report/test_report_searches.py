"""A search as a grid, and the word at the end of a study."""

from types import SimpleNamespace

import pytest

from pipeline import files
from pipeline.report import markdown, process_figures
from pipeline.report.searches import Search, told


def trial(objective, epochs=5, **point):
    return {"hyperparameters": point, "objective": objective, "epochs": epochs}


TRIALS = [
    trial(0.5, batch_size=64, prior_variance=0.1, kappa_over_n=2e-7),
    trial(0.4, batch_size=128, prior_variance=0.1, kappa_over_n=2e-7),
    trial(None, 1, batch_size=64, prior_variance=1.0, kappa_over_n=2e-7),
    trial(0.3, batch_size=64, prior_variance=0.1, kappa_over_n=5e-8),
]


@pytest.fixture
def search():
    return Search("lenet-mnist-mnvi", TRIALS, TRIALS[3]["hyperparameters"])


def test_the_two_axes_are_those_that_matter_most(search):
    assert search.axes == {"kappa_over_n": [5e-8, 2e-7], "prior_variance": [0.1, 1.0]}


def test_a_place_stands_for_its_best_trial(search):
    assert search.best_at({"kappa_over_n": 2e-7, "prior_variance": 0.1}) is TRIALS[1]


def test_a_place_without_a_sound_trial_says_so(search):
    assert told(search.best_at({"kappa_over_n": 2e-7, "prior_variance": 1.0})) == "failed"
    assert told(search.best_at({"kappa_over_n": 5e-8, "prior_variance": 1.0})) == "not tried"


def test_markdown_is_a_grid_with_the_chosen_place_in_bold(search):
    assert markdown.searches([search]).splitlines() == [
        "**lenet-mnist-mnvi**",
        "",
        "| prior variance \\ κ/N | 5e-8 | 2e-7 |",
        "| --- | --- | --- |",
        "| 0.1 | **0.3** (5) | 0.4 (5) |",
        "| 1 | not tried | failed (1) |",
    ]


def test_one_axis_makes_one_row():
    trials = [trial(0.2, dropout=0.1), trial(0.1, dropout=0.5)]
    found = markdown.searches([Search("lenet-mnist-mc_dropout", trials, {"dropout": 0.5})])
    assert found.splitlines()[2:] == [
        "| dropout | 0.1 | 0.5 |",
        "| --- | --- | --- |",
        "|  | 0.2 (5) | **0.1** (5) |",
    ]


def test_a_failed_trial_does_not_take_the_colours_of_the_heat_map(search):
    (image,) = process_figures._heat_map(search).axes[0].images
    assert image.get_clim() == (0.3, 0.4)


def test_the_heat_map_says_how_long_each_trial_went_on(search):
    texts = {text.get_text() for text in process_figures._heat_map(search).axes[0].texts}
    assert {"0.3\n5 epochs", "failed\n1 epoch", "not tried"} <= texts


@pytest.mark.parametrize(("missing", "warned"), [(["no source"], True), (["no source", None], False)])
def test_a_study_in_which_nothing_ran_ends_with_a_warning(missing, warned, tmp_path, monkeypatch, capsys):
    from pipeline.report import __main__ as stage

    settled = SimpleNamespace(is_settled=lambda: True, makes=[tmp_path])
    monkeypatch.setattr(stage, "account", lambda study: settled)
    cells = [SimpleNamespace(evaluate=tmp_path / str(index)) for index in range(len(missing))]
    for cell, why in zip(cells, missing, strict=True):
        files.write_json(cell.evaluate / "scores.json", {"missing": why})
    stage.write(SimpleNamespace(cells=lambda: cells))
    assert ("WARNING: nothing ran" in capsys.readouterr().err) == warned
