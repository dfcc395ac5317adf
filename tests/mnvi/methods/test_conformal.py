"""Split-conformal sets and intervals hold the share they state, however wrong the predictions are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

import mnvi
from mnvi.methods import Conformal

TRIALS, CALIBRATION = 400, 99


def numbers(count: int, generator: torch.Generator) -> tuple[Distribution, Tensor]:
    """Predictions with a wrong mean and a standard deviation that is far too small."""
    spread = 0.5 + torch.rand(count, generator=generator)
    return Normal(torch.full((count,), 0.3), 0.1 * spread), spread * torch.randn(count, generator=generator)


def classes(count: int, generator: torch.Generator) -> tuple[Distribution, Tensor]:
    """Overconfident predictions."""
    logits = torch.randn(count, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return Categorical(logits=3 * logits), labels


@pytest.mark.parametrize("coverage", [0.8, 0.9])
@pytest.mark.parametrize("kind", [numbers, classes])
def test_the_stated_coverage_holds(kind, coverage: float) -> None:
    """The mean over trials of n = 99 is at least c, and for scores without ties less than c + 1/(n + 1)."""
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(TRIALS):
        conformal = Conformal(*kind(CALIBRATION, generator), coverage)
        predictive, targets = kind(200, generator)
        if kind is classes:
            covered = conformal.sets(predictive).gather(1, targets[:, None])
        else:
            lower, upper = conformal.intervals(predictive)
            covered = (lower <= targets) & (targets <= upper)
        shares.append(covered.double().mean())
    found = torch.stack(shares)
    error = 4 * float(found.std()) / TRIALS**0.5
    assert coverage - error <= float(found.mean()) <= coverage + 1 / (CALIBRATION + 1) + error


def test_a_set_always_holds_the_most_likely_class() -> None:
    sure = Categorical(probs=torch.tensor([[0.99, 0.01]]).repeat(100, 1))
    conformal = Conformal(sure, torch.zeros(100, dtype=torch.long))
    assert conformal.sets(Categorical(probs=torch.tensor([[0.4, 0.6]]))).tolist() == [[False, True]]


def test_predictions_of_mnvi_predict_serve() -> None:
    net, x = torch.nn.Linear(3, 4), torch.randn(50, 3)
    prediction = mnvi.predict(net, x, likelihood=mnvi.CategoricalLikelihood())
    sets = Conformal(prediction.distribution, torch.randint(4, (50,)), coverage=0.9).sets(prediction.distribution)
    assert sets.shape == (50, 4)


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 99 calibration examples, got 50"):
        Conformal(*numbers(50, torch.Generator()), coverage=0.99)


def test_the_kind_of_prediction_must_fit() -> None:
    generator = torch.Generator().manual_seed(0)
    of_numbers, of_classes = numbers(50, generator), classes(50, generator)
    with pytest.raises(TypeError, match="use intervals"):
        Conformal(*of_numbers).sets(of_numbers[0])
    with pytest.raises(TypeError, match="use sets"):
        Conformal(*of_classes).intervals(of_classes[0])
    with pytest.raises(ValueError, match="expected one target for each"):
        Conformal(of_numbers[0], of_numbers[1][:, None])
