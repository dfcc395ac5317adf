"""A short training of chosen parameters, for methods that start from a trained network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mnvi.elbo import ELBO, kl_divergence
from mnvi.methods.montecarlo import seeded


def maximise_elbo(
    net: nn.Module,
    parameters: Sequence[Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
    elbo: ELBO,
    *,
    steps: int,
    learning_rate: float,
    seed: int,
) -> list[float]:
    """Adam on some parameters of a network in evaluation mode; all others stay. The rate falls linearly to 0.

    Args:
        net: the network.
        parameters: those that are learnt.
        batches: taken in turn, one for each step.
        elbo: the objective.
        steps: number of steps.
        learning_rate: at the start.
        seed: of the samples that the likelihood draws.

    Returns:
        The loss of every step.
    """
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    losses = []
    device = parameters[0].device
    with seeded(seed, device):
        for step in range(steps):
            x, y = (part.to(device) for part in batches[step % len(batches)])
            loss = elbo(net(x), y, kl_divergence(net)).loss
            gradients = torch.autograd.grad(loss, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
    for parameter in parameters:
        parameter.grad = None
    return losses


def in_batches(x: Tensor, y: Tensor, size: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of about the same size, in a random but fixed order."""
    order = torch.randperm(len(x), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(x.device)
    return [(x[rows], y[rows]) for rows in order.tensor_split(max(1, round(len(x) / size)))]
