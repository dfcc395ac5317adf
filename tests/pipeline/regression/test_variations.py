"""``tools.variations`` changes what it is told to, goes on where it was stopped, and never mixes settings."""

import json
from pathlib import Path

import pytest
from tiny_study import enter, write_params

from pipeline.errors import StudyError
from pipeline.regression import cell_networks, folds
from tools import variations

FILE = Path("results/variations/tiny-mnvi.json")
ON_VALIDATION = Path("results/variations/validation/tiny-mnvi.json")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A study, and how each training was: batch size, prior variance, epochs, κ."""
    enter(tmp_path, monkeypatch)
    train, calls = cell_networks.train, []

    def noted(cell, plan, parts, **settings):
        it = cell.experiment
        calls.append((it.batch_size, cell.hyperparameters.get("prior_variance"), it.epochs, it.kappa))
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
        f"tiny-mnvi, batch_size 8: {found[1]['mean']:.3f} ± {found[1]['std']:.3f}, RMSE {found[1]['rmse']:.4g}, "
        f"95 % intervals hold {100 * found[1]['coverage_95']:.1f} %, {found[1]['cpu_seconds']:.0f} s"
    )


def test_settings_between_quotes_change_together(trained):
    found = run("batch_size=8,30 epochs=2 warm_up=1", "epochs=6")
    prior = trained[0][1]
    assert trained[1:] == [
        (8, prior, 2, {0: 0.0, 1: 1.0}),
        (30, prior, 2, {0: 0.0, 1: 1.0}),
        (16, prior, 6, {0: 0.01, 4: 1.0}),
    ]
    assert [one["changed"] for one in found[1:]] == [
        {"epochs": 2, "warm_up": 1, "batch_size": 8},
        {"epochs": 2, "warm_up": 1, "batch_size": 30},
        {"epochs": 6},
    ]


def test_what_is_not_of_the_cell_changes_the_training_too(trained):
    """27 rows in batches of 16: the last batch has 11."""
    found = run(
        "rows=54",
        "rows=54 last_batch=dropped",
        "optimizer=adam learning_rate=0.01",
        "network=tools.table_networks:heads_apart",
        "network=tools.table_networks:constant_noise",
    )
    assert len({one["mean"] for one in found}) == 6 and all(one["cpu_seconds"] > 0 for one in found)


def test_the_study_s_own_setting_can_be_left_out(trained):
    assert [one["changed"] for one in run("folds=2", "--only")] == [{"folds": 2}]


def test_a_kept_last_batch_is_the_study_s_own(trained):
    study, kept = run("last_batch=kept")
    assert study["mean"] == kept["mean"]


def test_validation_rows_are_of_the_training_folds(trained, monkeypatch):
    held = []
    fold = folds._fold
    monkeypatch.setattr(
        folds, "_fold", lambda table, training, rows, targets: held.append(rows) or fold(table, training, rows, targets)
    )
    on_test = run()
    tests, held[:] = held[:], []
    variations.main(["tiny-mnvi", "--runs", "1", "--validation"])
    on_validation = json.loads(ON_VALIDATION.read_text())["variations"]
    assert json.loads(FILE.read_text())["variations"] == on_test != on_validation
    assert [len(rows) for rows in held] == [3, 3]
    assert not any(set(rows.tolist()) & set(test.tolist()) for rows, test in zip(held, tests, strict=True))


@pytest.mark.parametrize("method", ["ddvi", "dvi"])
def test_networks_with_other_heads_take_every_posterior(trained, method):
    variations.main([f"tiny-{method}", "network=tools.table_networks:constant_noise", "--runs", "1"])
    found = json.loads(Path(f"results/variations/tiny-{method}.json").read_text())["variations"]
    assert found[1]["mean"] is not None and found[1]["mean"] != found[0]["mean"]


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
        ("warm_up=3", "warm_up: 3 leaves no epoch with a KL divergence; tiny-mnvi has 3"),
        ("epochs=2 warm_up=2", "warm_up: 2 leaves no epoch"),
        ("optimizer=lbfgs", "optimizer: 'lbfgs' is not one of those known"),
        ("network=lenet", "network: 'lenet' is not one of those known"),
        ("kappa=0.1 kappa=0.2", "names a setting twice; name each once"),
        ("batch_size=many", "batch_size: 'many' is not a whole number"),
    ],
)
def test_a_variation_that_there_is_not_is_refused_before_any_training(trained, given, message):
    with pytest.raises(StudyError, match=message):
        run(given)
    assert not trained
