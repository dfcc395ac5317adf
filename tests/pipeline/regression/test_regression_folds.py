from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_study import save_table

from pipeline.data.tablesets import load_table
from pipeline.regression import folds


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(5, 3, 40), np.ones(40)])
    x[::4, 1] = 2.0  # constant in the training rows of fold 0
    save_table(tmp_path, x, np.arange(40.0), folds=4)
    return load_table(tmp_path)


def test_inputs_are_standardised_on_the_training_rows_alone(table):
    fold = folds.test_folds(table, table.tests)[0]
    raw = torch.as_tensor(table.x)
    training = raw[torch.tensor([row for row in range(40) if row % 4])]
    expected = (raw[::4, 0] - training[:, 0].mean()) / training[:, 0].std(correction=0)
    torch.testing.assert_close(fold.held_x[:, 0], expected.float())
    torch.testing.assert_close(fold.x[:, 0].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)


def test_targets_keep_their_units(table):
    fold = folds.test_folds(table, table.tests)[1]
    assert fold.held_y.tolist() == list(range(1, 40, 4))


def test_standardised_targets_are_those_of_the_training_rows_and_held_out_ones_keep_their_units(table):
    fold = folds.test_folds(table, table.tests, "standardised")[1]
    training = torch.tensor([float(row) for row in range(40) if row % 4 != 1])
    assert fold.held_y.tolist() == list(range(1, 40, 4))
    assert (fold.target_mean, fold.target_std) == pytest.approx(
        (float(training.mean()), float(training.std(correction=0)))
    )
    torch.testing.assert_close(fold.y * fold.target_std + fold.target_mean, training)


def test_equal_targets_are_not_divided_by_their_deviation(table):
    constant = replace(table, y=torch.full_like(table.y, 7.0))
    fold = folds.test_folds(constant, table.tests, "standardised")[0]
    assert (fold.target_mean, fold.target_std) == (0.0, 1.0) and (fold.y == 7).all()


def test_a_column_that_is_constant_within_a_fold_gives_zeros(table):
    fold = folds.test_folds(table, table.tests)[0]
    assert (fold.x[:, 1] == 0).all()
    assert fold.held_x.isfinite().all()


def test_validation_rows_come_from_the_training_rows(table):
    for index, fold in enumerate(folds.validation_folds(table, table.tests)):
        learnt, held = set(fold.y.tolist()), set(fold.held_y.tolist())
        tested = set(range(index, 40, 4))
        assert len(held) == 3
        assert not learnt & held
        assert not (learnt | held) & tested
        assert len(learnt | held | tested) == 40


def test_a_seed_depends_on_its_name_alone():
    assert folds.seed("fold", 0, "run", 1) == folds.seed("fold", 0, "run", 1)
    assert folds.seed("fold", 0, "run", 1) != folds.seed("fold", 1, "run", 0)
