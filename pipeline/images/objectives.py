"""Builds a cell's network with its method, and the loss."""

from __future__ import annotations

import torch
from torch import nn

import mnvi
from pipeline.params import Cell
from pipeline.registry import networks

LOGIT_SAMPLES = 64


def build(cell: Cell, seed: int, *, classes: int, channels: int, examples: int, start: bool = True) -> mnvi.Objective:
    """The objective of a cell's method with freshly drawn weights; torch's global generator stays unchanged.

    Args:
        seed: seed of the weights.
        examples: N, so that κ = kappa_over_n · N.
        start: whether to load the weights that the experiment starts from.
    """
    method, dropout = cell.known_method, float(cell.hyperparameters.get("dropout", 0.0))

    def factory() -> nn.Module:
        net: nn.Module = networks.build(
            cell.experiment, dropout, start=start, num_classes=classes, in_channels=channels
        )
        return net

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = method.network(factory, **cell.method_arguments)
    likelihood = mnvi.CategoricalLikelihood(num_samples=LOGIT_SAMPLES)
    return mnvi.Objective(net, mnvi.ELBO(likelihood, num_data=examples, kappa=kappa_over_n(cell) * examples))


def kappa_over_n(cell: Cell) -> float:
    """Weight of the KL divergence in the loss per example; 0 for methods without a posterior."""
    return float(cell.hyperparameters["kappa_over_n"]) if cell.known_method.has_kl else 0.0


def weight_decay(cell: Cell) -> float:
    """The recipe's weight decay; 0 if a KL divergence takes its place."""
    if not cell.known_method.has_kl or "weight_decay" in cell.hyperparameters:
        return cell.experiment.weight_decay
    return 0.0


def num_parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())
