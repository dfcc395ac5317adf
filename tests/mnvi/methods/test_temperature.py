"""Tempered: a network whose output is divided by a temperature."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mnvi
from mnvi.methods import Tempered


def test_a_tensor_is_divided() -> None:
    assert torch.equal(Tempered(nn.Identity(), 2.0)(torch.ones(3)), torch.full((3,), 0.5))


def test_a_gaussian_s_variance_is_divided_by_the_square() -> None:
    out = Tempered(nn.Identity(), 2.0)(mnvi.Gaussian(torch.ones(3), torch.ones(3)))
    assert torch.equal(out.mean, torch.full((3,), 0.5)) and torch.equal(out.var, torch.full((3,), 0.25))


def test_samples_are_divided() -> None:
    out = Tempered(nn.Identity(), 2.0)(mnvi.Samples(torch.ones(4, 3, 2)))
    assert torch.equal(out.values, torch.full((4, 3, 2), 0.5))


def test_a_temperature_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature"):
        Tempered(nn.Identity(), 0.0)


@pytest.mark.parametrize("samples", [False, True])
def test_scaling_finds_the_temperature_that_made_the_labels(samples: bool) -> None:
    logits = 3 * torch.randn(20000, 4)
    labels = torch.distributions.Categorical(logits=logits / 2).sample()
    net = mnvi.Ensemble([nn.Identity(), nn.Identity()]) if samples else nn.Identity()
    tempered = mnvi.methods.scale_temperature(net, [(logits[:9999], labels[:9999]), (logits[9999:], labels[9999:])])
    assert float(tempered.temperature) == pytest.approx(2.0, abs=0.07)  # three standard errors
    assert mnvi.predict(tempered, logits[:5]).probs is not None


@pytest.mark.parametrize("made_with", [0.1, 6.0, 12.0])
def test_a_temperature_far_from_one_is_found(made_with: float) -> None:
    logits = 3 * torch.randn(20000, 4)
    labels = torch.distributions.Categorical(logits=logits / 3).sample()
    net = nn.Identity()
    tempered = mnvi.methods.scale_temperature(net, (logits * made_with / 3, labels))
    assert float(tempered.temperature) == pytest.approx(made_with, rel=0.05)  # three standard errors


def test_numbers_have_no_temperature() -> None:
    with pytest.raises(TypeError, match=r"scale_temperature: .* GaussianLikelihood; for numbers use mnvi.tune_noise"):
        mnvi.methods.scale_temperature(nn.Linear(2, 2), (torch.randn(5, 2), torch.randn(5)))


@pytest.mark.parametrize("method", [mnvi.methods.scale_temperature, mnvi.tune_noise])
def test_probabilities_in_place_of_logits_are_refused(method: Any) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1))
    with pytest.raises(ValueError, match=r"returns probabilities .* leave out its last softmax"):
        method(net, (torch.randn(20, 2), torch.randint(3, (20,))))


def test_a_fitted_network_keeps_its_likelihood() -> None:
    x, y = torch.randn(40, 2), torch.randint(2, (40,)).float()
    net = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    mnvi.fit(net, (x, y), likelihood=mnvi.BernoulliLikelihood(), epochs=1, progress=False)
    tempered = mnvi.methods.scale_temperature(net, (x, y))
    assert mnvi.predict(tempered, x).binary
