"""From a cell to what is trained: a network of the paper under one of its methods, with its loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import mnvi
from pipeline.params import Cell
from pipeline.params.schema import WITHOUT_KL

LOGIT_SAMPLES = 64


def build(cell: Cell, seed: int, *, classes: int, channels: int, examples: int) -> mnvi.Objective:
    """The loss of a cell's method with freshly drawn weights; torch's global generator is left as it was.

    Args:
        seed: of the weights.
        examples: N, so that κ = kappa_over_n · N.
    """
    factory = _network(cell, classes, channels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = mnvi.methods.build(cell.method, factory, **cell.method_arguments)
    likelihood = mnvi.CategoricalLikelihood(num_samples=LOGIT_SAMPLES)
    return mnvi.Objective(net, mnvi.ELBO(likelihood, num_data=examples, kappa=kappa_over_n(cell) * examples))


def kappa_over_n(cell: Cell) -> float:
    """Weight of the KL divergence in the loss per example; 0 where there is no posterior."""
    if cell.method in WITHOUT_KL:
        return 0.0
    return float(cell.hyperparameters["kappa_over_n"])


def weight_decay(cell: Cell) -> float:
    """The recipe's, unless a KL divergence takes its place."""
    if cell.method in WITHOUT_KL or "weight_decay" in cell.hyperparameters:
        return cell.experiment.weight_decay
    return 0.0


def num_parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def _network(cell: Cell, classes: int, channels: int) -> Callable[[], nn.Module]:
    dropout = float(cell.hyperparameters.get("dropout", 0.0))
    if cell.experiment.network == "lenet":
        return lambda: mnvi.models.lenet(classes, channels, dropout)
    if cell.experiment.network == "all_cnn":
        return lambda: mnvi.models.all_cnn(classes, channels, dropout)
    if cell.experiment.stem == "imagenet":
        return lambda: mnvi.models.resnet18(classes, "imagenet", channels, dropout)
    return lambda: mnvi.models.resnet18(classes, "cifar", channels, dropout)
