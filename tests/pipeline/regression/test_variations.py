"""``tools.variations`` changes one thing at a time, goes on where it was stopped, and never mixes settings."""

import json
from pathlib import Path

import pytest
from tiny_study import enter, write_params

from pipeline.errors import StudyError
from pipeline.regression import cell_networks
from tools import variations

FILE = Path("results/variations/tiny-mnvi.json")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A study, and how each training was: batch size, prior variance, epochs, κ."""
    enter(tmp_path, monkeypatch)
    train, calls = cell_networks.train, []

    def noted(cell, plan, parts, **settings):
        it = cell.experiment
        calls.append((it.batch_size, cell.hyperparameters["prior_variance"], it.epochs, it.kappa))
        return train(cell, plan, parts, **settings)

    monkeypatch.setattr(cell_networks, "train", noted)
    return calls


def run(*arguments, runs="1"):
    variations.main(["tiny-mnvi", *arguments, "--runs", runs])
    return json.loads(FILE.read_text())["variations"]


def test_one_thing_is_changed_at_a_time(trained, capsys):
    found = run("batch_size=8,30", "prior_variance=3.5", "epochs=1", "kappa=0.5", "folds=2", runs="2")
    (batch, prior, epochs, kappa) = trained[0]
    expected = [
        (8, prior, epochs, kappa),
        (30, prior, epochs, kappa),
        (batch, 3.5, epochs, kappa),
        (batch, prior, 1, {0: 0.01, 1: 1.0}),
        (batch, prior, epochs, {0: 0.5}),
        trained[0],
    ]
    assert trained[1:] == expected
    assert [one["changed"] for one in found] == [
        {},
        {"batch_size": 8},
        {"batch_size": 30},
        {"prior_variance": 3.5},
        {"epochs": 1},
        {"kappa": 0.5},
        {"folds": 2},
    ]
    assert len({one["mean"] for one in found}) == 7 and all(one["std"] > 0 for one in found)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == (
        f"tiny-mnvi, batch_size 8: {found[1]['mean']:.3f} ± {found[1]['std']:.3f}, "
        f"95 % intervals hold {100 * found[1]['coverage_95']:.1f} %"
    )


def test_targets_are_standardised_as_in_the_study(trained):
    """Raw targets of this size would give another likelihood than the study's."""
    raw, standardised = (one["mean"] for one in run("targets=standardised"))
    write_params(Path("params.yaml"), recipe={"targets": "standardised"})
    assert run()[0]["mean"] == standardised != raw


def test_a_command_run_again_trains_what_is_missing_and_then_nothing(trained):
    first = run("folds=2")
    both = run("folds=2,3")
    assert len(trained) == 3 and both[:2] == first
    assert run("folds=2,3") == both and len(trained) == 3


def test_the_study_s_own_folds_are_those_of_its_seed(trained):
    found = run("folds=1")
    assert found[0]["mean"] == found[1]["mean"]


@pytest.mark.parametrize("change", ["runs", "recipe"])
def test_other_settings_start_anew_and_say_so(trained, capsys, change):
    run("folds=2")
    if change == "recipe":
        write_params(Path("params.yaml"), recipe={"learning_rate": 0.01})
    found = run(runs="2" if change == "runs" else "1")
    assert len(found) == 1 and len(trained) == 3
    assert f"{FILE} was made with other settings, data or --runs; starting over" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("epoch=5", "'epoch' is not something that tiny-mnvi has.*epochs"),
        ("epochs=", "epochs: None is not a whole number of at least 1"),
        ("epochs=100000", "epochs: a schedule can be shortened, not lengthened"),
        ("batch_size=many", "batch_size: 'many' is not a whole number"),
    ],
)
def test_a_variation_that_there_is_not_is_refused_before_any_training(trained, given, message):
    with pytest.raises(StudyError, match=message):
        run(given)
    assert not trained
