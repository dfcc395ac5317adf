"""From a cell to what is trained: a network of the paper under one of its methods, with its loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import mnvi
from pipeline.errors import StudyError
from pipeline.params import Cell

LOGIT_SAMPLES = 64
WITHOUT_POSTERIOR = ("deterministic", "mc_dropout", "ensemble")


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
    if cell.method in WITHOUT_POSTERIOR:
        return 0.0
    try:
        return float(cell.hyperparameters["kappa_over_n"])
    except KeyError as error:
        raise StudyError(
            f"experiments.{cell.experiment.name}.methods.{cell.method}.hyperparameters: kappa_over_n is missing; "
            "give the weight of the KL divergence per training example, such as 2.0e-7"
        ) from error


def weight_decay(cell: Cell) -> float:
    """The recipe's, unless a KL divergence takes its place."""
    if cell.method in WITHOUT_POSTERIOR or "weight_decay" in cell.hyperparameters:
        return cell.experiment.weight_decay
    return 0.0


def num_parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def _network(cell: Cell, classes: int, channels: int) -> Callable[[], nn.Module]:
    dropout = float(cell.hyperparameters.get("dropout", 0.0))
    name, stem = cell.experiment.network, cell.experiment.stem or "cifar"
    if name == "lenet":
        return lambda: mnvi.models.lenet(classes, channels, dropout)
    if name == "all_cnn":
        return lambda: mnvi.models.all_cnn(classes, channels, dropout)
    if name == "resnet18" and stem == "imagenet":
        return lambda: mnvi.models.resnet18(classes, "imagenet", channels, dropout)
    if name == "resnet18" and stem == "cifar":
        return lambda: mnvi.models.resnet18(classes, "cifar", channels, dropout)
    raise StudyError(
        f"experiments.{cell.experiment.name}: network {name!r} with stem {stem!r} is not an image network; expected "
        "lenet, all_cnn, or resnet18 with stem cifar or imagenet"
    )
