"""Tempered: a network whose output is divided by a temperature."""

from __future__ import annotations

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
