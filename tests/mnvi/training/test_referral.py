"""Which examples go to a person."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mnvi


def classes(count: int = 2000) -> tuple[mnvi.Prediction, Tensor]:
    """Calibrated predictions of two classes, and labels drawn from them."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(count, generator=generator, dtype=torch.float64)
    probs = torch.stack([p, 1 - p], 1)
    labels = (torch.rand(count, generator=generator, dtype=torch.float64) > p).long()
    entropy = torch.special.entr(probs).sum(1)
    return mnvi.Prediction(entropy, entropy, torch.zeros(count), probs=probs), labels


def test_a_share_refers_the_most_uncertain() -> None:
    from mnvi.training.referral import most_uncertain

    prediction, _ = classes(10)
    referred = most_uncertain(prediction, 0.3)
    assert int(referred.sum()) == 3 and prediction.total[referred].min() > prediction.total[~referred].max()


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.29, 0.5])
def test_at_a_rate_the_threshold_refers_that_share(rate: float) -> None:
    prediction, labels = classes(1000)
    rule = mnvi.Referral.at_rate(prediction, labels, rate)
    assert float(rule(prediction).double().mean()) == pytest.approx(rate, abs=1e-3) and rule.rate == pytest.approx(rate)
    expected = mnvi.metrics.misclassification_at_rejection(prediction.probs, labels, rate)  # type: ignore[arg-type]
    assert rule.error == pytest.approx(float(expected))


def test_at_an_error_as_few_as_possible_are_referred() -> None:
    prediction, labels = classes()
    rule = mnvi.Referral.at_error(prediction, labels, error=0.1)
    kept = ~rule(prediction)
    wrong = (prediction.labels != labels).double()
    assert float(wrong[kept].mean()) == pytest.approx(rule.error) and rule.error <= 0.1
    looser = prediction.total <= prediction.total[~kept].min()
    assert float(wrong[looser].mean()) > 0.1


def test_the_threshold_of_one_half_holds_on_the_other() -> None:
    prediction, labels = classes(8000)
    halves = [
        mnvi.Prediction(
            *(t[rows] for t in (prediction.total, prediction.aleatoric, prediction.epistemic)),
            probs=prediction.probs[rows],
        )
        for rows in (slice(0, 4000), slice(4000, 8000))
    ]  # type: ignore[index]
    rule = mnvi.Referral.at_error(halves[0], labels[:4000], error=0.1)
    kept = ~rule(halves[1])
    error = float((halves[1].labels != labels[4000:])[kept].double().mean())
    assert error < 0.1 + 3 * (0.1 * 0.9 / int(kept.sum())) ** 0.5  # three standard errors


def test_for_numbers_the_error_is_the_root_mean_square() -> None:
    total = torch.tensor([1.0, 2.0, 3.0])
    prediction = mnvi.Prediction(total, total, torch.zeros(3), mean=torch.zeros(3))
    rule = mnvi.Referral.at_error(prediction, torch.tensor([1.0, -1.0, 10.0]), error=1.0)
    assert rule(prediction).tolist() == [False, False, True] and rule.error == pytest.approx(1.0)


def test_equal_uncertainties_are_referred_together() -> None:
    total = torch.tensor([1.0, 1.0, 1.0])
    prediction = mnvi.Prediction(total, total, torch.zeros(3), mean=torch.zeros(3))
    with pytest.raises(ValueError, match="cannot be reached, however many examples are referred"):
        mnvi.Referral.at_error(prediction, torch.tensor([0.0, 0.0, 10.0]), error=1.0)


def test_targets_of_another_shape_are_refused() -> None:
    prediction, labels = classes(10)
    with pytest.raises(ValueError, match="expected one target for each"):
        mnvi.Referral.at_rate(prediction, labels[:, None], 0.1)
