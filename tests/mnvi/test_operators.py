"""How many operators an eager training step launches: each costs microseconds, however small its tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mnvi
from benchmarks.scaling.launches import launched as launched_by

CONVOLUTIONS = 20


@pytest.mark.parametrize(("options", "most"), [({}, 9.4), (mnvi.options.PAPER, 9.35)], ids=["default", "paper"])
def test_training_step_of_resnet18_launches_a_bounded_multiple_of_the_plain_operators(
    options: dict, most: float
) -> None:
    torch.manual_seed(0)
    plain = mnvi.models.resnet18(10)
    net = mnvi.convert(plain, mnvi.MultiplicativeNoise(1e-4))
    objective = mnvi.Objective(net, mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=50_000))
    x, y = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    without_noise = sum(launched_by(lambda: F.cross_entropy(plain(x), y).backward()).values())
    with mnvi.options(**options):
        launched = launched_by(lambda: objective(x, y).loss.backward())
    assert launched["convolution"] == launched["convolution_backward"] == 2 * CONVOLUTIONS
    assert sum(launched.values()) <= most * without_noise


def test_divergence_of_resnet18_shares_operators_among_layers() -> None:
    net = mnvi.convert(mnvi.models.resnet18(10), mnvi.MultiplicativeNoise(1e-4))
    together = sum(launched_by(lambda: mnvi.kl_divergence(net).backward()).values())
    net.zero_grad()
    one_by_one = sum(launched_by(lambda: sum(x.kl_divergence() for x in mnvi.bayesian_layers(net)).backward()).values())
    assert together <= 200 < 600 < one_by_one
