"""A model whose weights mostly stay deterministic says so at conversion."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import Tensor, nn

import mnvi

NOISE = mnvi.MultiplicativeNoise(prior_variance=1.0)


class Unknown(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight)


class Other(Unknown): ...


def test_unknown_classes_with_most_weights_are_named_the_biggest_first() -> None:
    net = nn.Sequential(Other(4), Unknown(4), Unknown(4), nn.Linear(4, 4))
    expected = "75 % of the weights stay deterministic, since their classes are unknown: Unknown (50 %), Other (25 %)"
    with pytest.warns(UserWarning, match=re.escape(expected) + ".*mnvi.register_layer.*mnvi.summary"):
        mnvi.convert(net, NOISE)


def test_the_warning_points_to_the_call_of_convert() -> None:
    with pytest.warns(UserWarning, match="stay deterministic") as caught:
        mnvi.convert(nn.Sequential(Unknown(4), nn.Linear(4, 2)), NOISE)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("net", "arguments"),
    [
        (nn.Sequential(Unknown(4), nn.Linear(4, 4)), {}),  # half
        (nn.Sequential(nn.Linear(4, 100), nn.Linear(100, 2)), {"skip": "0"}),  # left out by choice
        (nn.Sequential(Unknown(40), nn.Linear(4, 4)), {"only": "1"}),  # the caller names what to convert
        (nn.Sequential(nn.BatchNorm1d(500), nn.Linear(500, 1)), {}),  # no matrix of its own
    ],
)
def test_no_warning_where_nothing_is_missing(net: nn.Module, arguments: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mnvi.convert(net, NOISE, **arguments)
