"""A module that uses a layer's weight past its posterior is noticed."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi

NOISE = mnvi.MultiplicativeNoise(prior_variance=1.0)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(x, self.first.weight))


class ReadsInALoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.matmul(x, getattr(layer, "weight").t())  # noqa: B009
        return x


class Asks(Reads):
    def forward(self, x: Tensor) -> Tensor:
        assert self.first.weight.dtype == x.dtype and self.first.weight.size(1) == x.shape[1]
        return self.last(self.first(x))


def test_a_weight_used_without_its_layer_names_layer_and_line() -> None:
    net = mnvi.convert(Reads(), NOISE)
    with pytest.warns(mnvi.UnusedPosteriorWarning, match=r"layer 'first': .*test_watching.py, line \d+, in forward"):
        net(torch.ones(2, 3))


def test_it_is_noticed_however_the_weight_is_read() -> None:
    net = mnvi.convert(ReadsInALoop(), NOISE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net(torch.ones(2, 3))
    assert [str(found.message).partition(":")[0] for found in caught] == ["layer 'layers.0'", "layer 'layers.1'"]


def test_questions_about_a_weight_and_calls_of_layers_are_silent() -> None:
    assert mnvi.convert(Asks(), NOISE)(torch.ones(2, 3)).shape == (2, 2)  # warnings are errors


def test_a_layer_left_out_is_silent() -> None:
    assert mnvi.convert(Reads(), NOISE, skip="first")(torch.ones(2, 3)).shape == (2, 2)


def test_only_the_first_pass_is_watched() -> None:
    net = mnvi.convert(Asks(), NOISE)
    before = len(net._forward_pre_hooks)
    net(torch.ones(2, 3))
    assert before == 1 and len(net._forward_pre_hooks) == 0


def test_a_pass_that_fails_ends_the_watch() -> None:
    net = mnvi.convert(Asks(), NOISE)
    with pytest.raises(AssertionError):
        net(torch.ones(2, 4))
    assert len(net._forward_pre_hooks) == 0
    assert net.first.weight.sum().dim() == 0  # warnings are errors


def test_a_watched_model_can_be_copied_pickled_and_compiled() -> None:
    net, x = mnvi.convert(Asks(), NOISE), torch.ones(2, 3)
    expected = copy.deepcopy(net)(x)
    for other in (pickle.loads(pickle.dumps(net)), torch.compile(net, fullgraph=True, backend="eager")):
        assert torch.equal(other(x).var, expected.var)
