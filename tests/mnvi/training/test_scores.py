"""mnvi.evaluate: the library's metrics under their names."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import mnvi


def test_scores_of_classes_are_those_of_the_metrics() -> None:
    net, x, y = nn.Linear(4, 3), torch.randn(50, 4), torch.randint(3, (50,))
    probs = net(x).softmax(1).detach()
    found = mnvi.evaluate(net, (x, y), likelihood=mnvi.CategoricalLikelihood(), batch_size=20)
    expected = {name: getattr(mnvi.metrics, name)(probs, y).item() for name in ("nll", "ece", "aumrc", "brier")}
    assert found == pytest.approx({**expected, "error": mnvi.metrics.misclassification(probs, y).item()}, rel=1e-5)


def test_scores_of_numbers_are_those_of_the_metrics() -> None:
    net, x, y = mnvi.models.mlp(4), torch.randn(50, 4), torch.randn(50)
    distribution = mnvi.GaussianLikelihood().predictive(net(x).detach())
    found = mnvi.evaluate(net, (x, y), likelihood=mnvi.GaussianLikelihood())
    assert found["rmse"] == pytest.approx(mnvi.metrics.rmse(distribution.mean, y).item())
    assert found["nll"] == pytest.approx(-mnvi.metrics.log_likelihood(distribution, y).item())
    assert found["coverage"] == mnvi.metrics.interval_coverage(distribution, y, 0.95).item()


def test_scores_of_yes_and_no() -> None:
    net, x, y = nn.Linear(4, 1), torch.randn(50, 4), torch.randint(2, (50, 1)).float()
    found = mnvi.evaluate(net, (x, y), likelihood=mnvi.BernoulliLikelihood())
    assert found["error"] == pytest.approx(((net(x) > 0) != (y > 0)).double().mean().item())
    expected = nn.functional.binary_cross_entropy_with_logits(net(x), y)
    assert found["nll"] == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("dense", [False, True])
def test_labels_that_do_not_count_are_left_out(dense: bool) -> None:
    """Scores are those of the other labels alone, in training with validation data, too."""
    shape = (40, 3, 4, 4) if dense else (40, 3)
    net = nn.Sequential(nn.Conv2d(3, 4, 1)) if dense else nn.Sequential(nn.Linear(3, 4))
    x, y = torch.randn(shape), torch.randint(0, 4, shape[:1] + shape[2:])
    likelihood = mnvi.CategoricalLikelihood(ignore_index=255, class_dim=1)
    full = mnvi.evaluate(net, (x[:20], y[:20]), likelihood=likelihood)
    y[20:] = 255
    some = mnvi.evaluate(net, (x, y), likelihood=likelihood)
    assert some == pytest.approx(full)
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0))
    fitted = mnvi.fit(bayesian, (x, y), validation=(x, y), likelihood=likelihood, epochs=1, progress=False)
    assert math.isfinite(fitted.history[-1]["validation_nll"])
