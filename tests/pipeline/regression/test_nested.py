"""``tools.nested`` keeps every score of a grid, and the ways of choosing read them."""

import json
from pathlib import Path

import pytest
from tiny_study import enter

from pipeline.errors import StudyError
from pipeline.regression import cell_networks
from tools import nested

FILE = Path("results/nested/tiny-mnvi.json")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A study with a grid, and the batch size, rows and networks of each training."""
    enter(tmp_path, monkeypatch, grid={"batch_size": [16, 30]})
    train, calls = cell_networks.train, []

    def noted(cell, plan, parts, **settings):
        calls.append((cell.experiment.batch_size, len(parts[0].y), len(plan)))
        return train(cell, plan, parts, **settings)

    monkeypatch.setattr(cell_networks, "train", noted)
    return calls


def test_every_point_trains_without_and_with_the_validation_rows(trained):
    nested.main(["tiny-mnvi", "--runs", "3"])
    assert trained == [(16, 27, 4), (16, 30, 6), (30, 27, 4), (30, 30, 6)]
    kept = json.loads(FILE.read_text())
    assert kept["study"]["batch_size"] == 16
    assert [len(one["validation"]) for one in kept["points"]] == [2, 2]
    assert [[len(run) for run in one["test"]] for one in kept["points"]] == [[2, 2, 2]] * 2


def test_a_second_command_trains_nothing(trained, capsys):
    nested.main(["tiny-mnvi", "--runs", "1"])
    first = capsys.readouterr().out.splitlines()
    nested.main(["tiny-mnvi", "--runs", "1"])
    assert len(trained) == 4 and capsys.readouterr().out.splitlines() == first[2:]


def test_a_method_without_a_grid_is_refused(trained, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    enter(tmp_path / "other", monkeypatch)
    with pytest.raises(StudyError, match="tiny-mnvi: its method has no grid"):
        nested.main(["tiny-mnvi"])
    assert not trained
