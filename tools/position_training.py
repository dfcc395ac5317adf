"""Trains small networks on scikit-learn's digits: without noise, with it, and with both settings of ``spatial``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi
from tools.position_data import digits
from tools.position_networks import all_convolutional

SETTINGS = ("independent", "shared_weights")
SIDE = 16
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def resnet20(num_classes: int = 10) -> nn.Module:
    return mnvi.models.resnet20(num_classes, in_channels=1)


# name: (network, the setting of ``spatial`` that it is trained with, or None for a network trained without noise)
TRAINED: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    "all-convolutional, trained without noise": (all_convolutional, None),
    "resnet20, trained without noise": (resnet20, None),
    **{
        f"{name}, trained with `{setting}`": (build, setting)
        for name, build in (("all-convolutional", all_convolutional), ("resnet20", resnet20))
        for setting in SETTINGS
    },
}


def trained(name: str, steps: int = 400) -> tuple[nn.Module, float]:
    """A network of ``TRAINED``, and its accuracy. One trained with noise is Bayesian and has the noise it learnt."""
    build, setting = TRAINED[name]
    x, y, test, labels = digits(SIDE)
    torch.manual_seed(0)
    net = build()
    if setting is None:
        optimise(net, x, y, steps, lambda net, x, y: F.cross_entropy(net(x), y))
    else:
        net = with_noise(net, x, y, steps, setting)
    with torch.no_grad():
        out = net(test)
    best = (out if isinstance(out, Tensor) else out.mean).argmax(1)
    return net, (best == labels).double().mean().item()


def with_noise(net: nn.Module, x: Tensor, y: Tensor, steps: int, setting: Any) -> nn.Module:
    """The network converted and trained with MNVI, under one setting of ``spatial``."""
    model = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-2))
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(num_samples=64), num_data=len(x), kappa=0.02)
    with mnvi.options(spatial=setting):
        optimise(model, x, y, steps, lambda net, x, y: elbo(net(x), y, mnvi.kl_divergence(net)).loss)
    return model


def optimise(net: nn.Module, x: Tensor, y: Tensor, steps: int, loss: Loss) -> None:
    """Adam on random batches of 64; the network is in evaluation mode afterwards."""
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(steps):
        chosen = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        loss(net, x[chosen], y[chosen]).backward()
        optimizer.step()
    net.eval()


def helps(build: Callable[[int], nn.Module], seed: int, steps: int) -> list[dict[str, Any]]:
    """Metrics of a network trained with each setting on digits 0 to 7; 8 and 9 are foreign."""
    x, y, test, labels = digits(8 if build is all_convolutional else SIDE)
    x, y, known = x[y < 8], y[y < 8], labels < 8
    records = []
    for setting in SETTINGS:
        torch.manual_seed(seed)
        model = with_noise(build(8), x, y, steps, setting)
        for evaluated in SETTINGS if setting == "independent" else (setting,):
            records.append(
                {
                    "seed": seed,
                    "trained": setting,
                    "evaluated": evaluated,
                    **_metrics(model, evaluated, test, labels, known),
                }
            )
            print(records[-1], flush=True)
    return records


@torch.no_grad()
def _metrics(model: nn.Module, setting: Any, x: Tensor, labels: Tensor, known: Tensor) -> dict[str, float]:
    torch.manual_seed(0)
    with mnvi.options(spatial=setting):
        probs = mnvi.CategoricalLikelihood(num_samples=64).predictive(model(x)).probs
    entropy, scored = mnvi.metrics.predictive_entropy(probs), (probs[known], labels[known])
    return {
        "accuracy": 1 - mnvi.metrics.misclassification(*scored).item(),
        "nll": mnvi.metrics.nll(*scored).item(),
        "ece": mnvi.metrics.ece(*scored).item(),
        "aumrc": mnvi.metrics.aumrc(*scored).item(),
        "auroc": mnvi.metrics.auroc(entropy[known], entropy[~known]).item(),
    }
