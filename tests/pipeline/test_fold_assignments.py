"""``tools.fold_assignments`` goes on where it was stopped, and never mixes settings."""

import json
from pathlib import Path

import pytest
from tiny_study import enter, write_params

from pipeline.regression import networks
from tools import fold_assignments

FILE = Path("results/fold_assignments/tiny-deterministic.json")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A study, and how many networks were trained each time."""
    enter(tmp_path, monkeypatch)
    train, calls = networks.train, []

    def counted(cell, plan, parts):
        calls.append(len(plan))
        return train(cell, plan, parts)

    monkeypatch.setattr(networks, "train", counted)
    return calls


def run(*arguments):
    fold_assignments.main(["tiny-deterministic", "--runs", "1", *arguments])
    return json.loads(FILE.read_text())


def test_one_assignment_has_no_spread(trained, capsys):
    result = run("--assignments", "1")
    assert result["std"] is None and len(result["assignments"]) == 1
    assert capsys.readouterr().out.endswith(f"1 assignments: {result['mean']:.3f}\n")


def test_a_command_run_again_trains_what_is_missing_and_then_nothing(trained, capsys):
    first = run("--assignments", "1")
    both = run("--assignments", "2")
    assert trained == [2, 2] and both["assignments"][:1] == first["assignments"]
    assert run("--assignments", "2") == both and trained == [2, 2]
    assert capsys.readouterr().out.endswith(f"2 assignments: {both['mean']:.3f} ± {both['std']:.3f}\n")


@pytest.mark.parametrize("change", ["runs", "recipe"])
def test_other_settings_start_anew_and_say_so(trained, capsys, change):
    run("--assignments", "2")
    if change == "recipe":
        write_params(Path("params.yaml"), recipe={"learning_rate": 0.01})
    result = run("--assignments", "1", "--runs", "2" if change == "runs" else "1")
    assert len(result["assignments"]) == 1 and len(trained) == 3
    assert f"{FILE} was made with other settings, data or --runs; starting anew" in capsys.readouterr().out


def test_no_assignment_at_all_is_refused(trained, capsys):
    with pytest.raises(SystemExit):
        run("--assignments", "0")
    assert "--assignments: 0 must be at least 1" in capsys.readouterr().err
