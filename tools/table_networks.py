"""Networks for tables that differ from the study's in their heads; `network=` of tools.variations names them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mnvi


class ConstantNoise(nn.Module):
    """Adds a log-variance that is the same for every input to a network that predicts the mean only."""

    place: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.log_noise = nn.Parameter(torch.zeros(()))
        self.register_buffer("place", torch.tensor([[1.0], [0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.stack([torch.zeros_like(self.log_noise), self.log_noise])
        return F.linear(self.net(x), self.place, noise)


class HeadsApart(nn.Module):
    """Two output layers, one for the mean and one for the log-variance, so that each has noise of its own."""

    def __init__(self, body: nn.Module, hidden: int) -> None:
        super().__init__()
        self.body = body
        self.mean = nn.Linear(hidden, 1)
        self.log_variance = nn.Linear(hidden, 1)
        for head in (self.mean, self.log_variance):
            nn.init.xavier_normal_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return torch.cat([self.mean(x), self.log_variance(x)], -1)


def constant_noise(in_features: int, hidden: int, dropout: float) -> nn.Module:
    """The study's network with a homoscedastic head.

    Example:
        >>> import torch
        >>> constant_noise(13, 50, 0.0)(torch.ones(5, 13))[:, 1].detach()
        tensor([0., 0., 0., 0., 0.])
    """
    return ConstantNoise(mnvi.models.mlp(in_features, hidden, 1, dropout))


def heads_apart(in_features: int, hidden: int, dropout: float) -> nn.Module:
    """The study's network with separate layers for the two heads, as the released implementation has them.

    Example:
        >>> import torch
        >>> net = mnvi.convert(heads_apart(13, 50, 0.0), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> net.mean.rho.shape, net.log_variance.rho.shape, net(torch.ones(5, 13)).var.shape
        (torch.Size([50]), torch.Size([50]), torch.Size([5, 2]))
    """
    whole = mnvi.models.mlp(in_features, hidden, 2, dropout)
    body = nn.Sequential(OrderedDict(list(whole.named_children())[:-1]))
    return HeadsApart(body, hidden)
