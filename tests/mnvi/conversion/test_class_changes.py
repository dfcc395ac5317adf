"""A word when noise destroys a trained network."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import mnvi


def threshold() -> nn.Module:
    """Class 0 for x > 0.1, class 1 otherwise; noise raises the mean of a ReLU of negative numbers."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        for parameter, values in zip(net.parameters(), ([[1.0]], [0.0], [[1.0], [0.0]], [0.0, 0.1]), strict=True):
            parameter.copy_(torch.tensor(values))
    return net


X = torch.linspace(-1, 1, 100)[:, None]


def test_noise_that_changes_the_classes_is_announced() -> None:
    with pytest.warns(UserWarning, match=r"changes the most likely class of \d+ % of 100 examples"):
        mnvi.convert(threshold(), mnvi.MultiplicativeNoise(1.0, init_rho=3.0), example=X)


def test_little_noise_passes_without_a_word_and_modes_stay() -> None:
    net = threshold().train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0, init_rho=-12.0), example=X)
    assert net.training and bayesian.training


@pytest.mark.parametrize(
    ("net", "example"), [(nn.Linear(3, 1), torch.randn(4, 3)), (nn.Conv2d(1, 3, 1), torch.randn(2, 1, 5, 5))]
)
def test_an_output_other_than_logits_of_classes_is_refused(net: nn.Module, example: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="leave example out"):
        mnvi.convert(net, mnvi.MultiplicativeNoise(1.0), example=example)
