"""Networks in which one assumption of the rules shows, for :mod:`tools.trust_table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi


@dataclass
class Case:
    """A network in which one assumption shows.

    Attributes:
        assumption: what the rules take for granted there.
        build: makes the network.
        shape: of one input.
        options: for ``mnvi.options``.
        noise: settings of the noise.
        example: makes the inputs from standard normal numbers, if these are not the inputs themselves.
    """

    assumption: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    noise: dict[str, Any] = field(default_factory=dict)
    example: Callable[[Tensor], Tensor] = lambda x: x


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return x + self.second(torch.relu(self.first(self.norm(x))))


class Tokens(nn.Module):
    """A transformer, read at its first token or averaged over all."""

    def __init__(self, average: bool) -> None:
        super().__init__()
        self.inside = nn.Linear(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.average = nn.Linear(32, 10), average

    def forward(self, x: Any) -> Any:
        x = self.encoder(self.inside(x))
        return self.head(torch.mean(x, 1) if self.average else x[:, 0])


class Steps(nn.Module):
    """A recurrent layer, read at its last step."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.steps, self.head = kind(16, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.steps(x)[0][:, -1])


class Words(nn.Module):
    """The average of the vectors of twelve words, of which some occur several times."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.head = nn.Embedding(20, 32), nn.Linear(32, 10)

    def forward(self, words: Any) -> Any:
        return self.head(torch.mean(self.vectors(words), 1))


class Attention(nn.Module):
    """One attention layer over six tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(16, 32), nn.Linear(32, 10)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = self.inside(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0][:, 0])


class Graph(nn.Module):
    """Two rounds of messages on a ring of twelve nodes, each of which hears six neighbours; read at the first node."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = self.heard(self.heard(torch.relu(self.first(x)), self.second), nn.Identity())
        return self.head(x[:, 0])

    @staticmethod
    def heard(x: Any, layer: nn.Module) -> Any:
        nodes = torch.arange(12)
        senders = torch.cat([(nodes + shift) % 12 for shift in (-3, -2, -1, 1, 2, 3)])
        messages = torch.relu(layer(x))[:, senders]
        return torch.zeros(len(x), 12, messages.shape[-1]).index_add(1, nodes.repeat(6), messages) / 6


class Context(nn.Module):
    """A vector that is added to all of nine positions, which are averaged after a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.vector, self.positions = nn.Linear(16, 32), nn.Linear(16, 32)
        self.second, self.head = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = self.positions(x[:, 1:]) + self.vector(x[:, :1])
        return self.head(torch.mean(torch.relu(self.second(torch.relu(x))), 1))


class Between(nn.Module):
    """A function between a first and a last layer."""

    def __init__(self, function: Callable[[Any], Any], first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.function, self.last = first, function, last

    def forward(self, x: Any) -> Any:
        return self.last(self.function(self.first(x)))


class Dueling(nn.Module):
    """A value plus four advantages minus their mean, as in reinforcement learning."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(20, 1), nn.Linear(20, 4)

    def forward(self, x: Any) -> Any:
        value, advantage = self.value(x), self.advantage(x)
        return value + advantage - torch.mean(advantage, 1, keepdim=True)


def between(function: Callable[[Any], Any], width: int, after: int) -> Callable[[], nn.Module]:
    return lambda: Between(function, nn.Linear(20, width), nn.Linear(after, 10))


def by_hand(x: Any) -> Any:
    """An RMS norm that is written by hand."""
    return x * torch.rsqrt(torch.mean(x.square(), -1, keepdim=True) + 1e-6)


def upsampled() -> nn.Module:
    first, last = nn.Conv2d(3, 16, 3, padding=1), nn.Sequential(nn.Conv2d(16, 1, 3), nn.Flatten())
    return Between(lambda x: F.interpolate(torch.relu(x), scale_factor=2.0), first, last)


def pooled_minus_itself() -> nn.Module:
    first, last = nn.Conv2d(3, 16, 3, padding=1), nn.Sequential(nn.Conv2d(16, 1, 3), nn.Flatten())
    return Between(lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x, first, last)


def perceptron(hidden: int, activation: Callable[[], nn.Module], *, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for number in range(hidden):
        layers += [nn.Linear(20 if number == 0 else 64, 64), *([nn.LayerNorm(64)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def convolutions(last: nn.Module, features: int) -> nn.Module:
    body = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*body, last, nn.Flatten(), nn.Linear(features, 10))


def _flat() -> nn.Module:
    return convolutions(nn.Identity(), 16 * 64)


def _averaged() -> nn.Module:
    return convolutions(nn.AdaptiveAvgPool2d(1), 16)


def ten_times(x: Tensor) -> Tensor:
    return x.expand(-1, 10, -1)


_SHARED = {"spatial": "shared_weights"}
_POSITIONS = "Positions are independent, although they share weights"
_CARRIED = "One covariance stands for all pairs of positions of a channel"
_STEPS = "Steps are independent draws of the weights"
_COPIES = "Copies of an entry are independent"
_OWN_NORM = "A norm by hand is independent of its entries"
_UNITS = "Units of a layer are independent given the layer before"
CASES = {
    "one linear layer": Case("None: exact", lambda: nn.Linear(20, 10), (20,)),
    "2 hidden layers, ReLU": Case(_UNITS, lambda: perceptron(2, nn.ReLU), (20,)),
    "8 hidden layers, ReLU": Case(_UNITS, lambda: perceptron(8, nn.ReLU), (20,)),
    "2 hidden layers, GELU": Case(_UNITS, lambda: perceptron(2, nn.GELU), (20,)),
    "2 hidden layers, tanh": Case(_UNITS, lambda: perceptron(2, nn.Tanh), (20,)),
    "2 hidden layers, tanh, first order": Case(
        "Activations are linear around the mean", lambda: perceptron(2, nn.Tanh), (20,), {"activation": "taylor"}
    ),
    "2 hidden layers, LayerNorm": Case(
        "A norm's statistics are independent of its entries", lambda: perceptron(2, nn.ReLU, norm=True), (20,)
    ),
    "4 residual blocks": Case(
        "The two sides of a sum are independent",
        lambda: nn.Sequential(nn.Linear(20, 64), *(Residual(64) for _ in range(4)), nn.Linear(64, 10)),
        (20,),
    ),
    "LeNet": Case("A maximum is the entry with the largest mean", mnvi.models.lenet, (1, 28, 28)),
    "LeNet, Clark's maximum": Case(
        "A maximum of Gaussians is Gaussian", mnvi.models.lenet, (1, 28, 28), {"max_pool": "clark"}
    ),
    "convolutions, flattened": Case(_POSITIONS, _flat, (3, 8, 8)),
    "convolutions, averaged": Case(_POSITIONS, _averaged, (3, 8, 8)),
    "convolutions, averaged, shared": Case(_CARRIED, _averaged, (3, 8, 8), _SHARED),
    "AllCNN": Case(_POSITIONS, mnvi.models.all_cnn, (3, 16, 16)),
    "AllCNN, shared": Case(_CARRIED, mnvi.models.all_cnn, (3, 16, 16), _SHARED),
    "ResNet20": Case(_POSITIONS, lambda: mnvi.models.resnet20(10), (3, 16, 16)),
    "ResNet20, shared": Case(_CARRIED, lambda: mnvi.models.resnet20(10), (3, 16, 16), _SHARED),
    "transformer, first token": Case(
        "Queries, keys and values are independent", lambda: Tokens(average=False), (6, 16)
    ),
    "transformer, averaged": Case("Tokens are independent, although they share weights", lambda: Tokens(True), (6, 16)),
    "transformer, averaged, shared": Case(_CARRIED, lambda: Tokens(average=True), (6, 16), _SHARED),
    "attention layer, 6 tokens": Case("Queries, keys and values are independent", Attention, (6, 16)),
    "RNN, 10 steps": Case(_STEPS, lambda: Steps(nn.RNN), (10, 16)),
    "LSTM, 10 steps": Case(_STEPS, lambda: Steps(nn.LSTM), (10, 16)),
    "GRU, 10 steps": Case(_STEPS, lambda: Steps(nn.GRU), (10, 16)),
    "LSTM, the same input 10 times": Case(_STEPS, lambda: Steps(nn.LSTM), (1, 16), example=ten_times),
    "GRU, the same input 10 times": Case(_STEPS, lambda: Steps(nn.GRU), (1, 16), example=ten_times),
    "average of 12 word vectors": Case(
        "Two occurrences of a word are independent draws of its vector",
        Words,
        (12,),
        example=lambda x: (x.abs() * 6).long().clamp(max=19),
    ),
    "messages on a graph": Case("Nodes are independent, although they share weights and neighbours", Graph, (12, 16)),
    "a vector added to 9 positions": Case("Positions are independent, although they share it", Context, (10, 16)),
    "2 hidden layers, factored": Case(
        "Squared weights are an outer product", lambda: perceptron(2, nn.ReLU), (20,), noise={"variance": "factored"}
    ),
    "LeNet, factored": Case(
        "Squared weights are an outer product", mnvi.models.lenet, (1, 28, 28), noise={"variance": "factored"}
    ),
    "concatenated with its ReLU (warns)": Case(
        _COPIES, between(lambda x: torch.cat([x, torch.relu(x)], -1), 32, 64), (20,)
    ),
    "each of 8 entries 4 times (warns)": Case(_COPIES, between(lambda x: x.repeat(1, 4), 8, 32), (20,)),
    "RMS norm by hand, 64 entries": Case(_OWN_NORM, between(by_hand, 64, 64), (20,)),
    "RMS norm by hand, 4 entries": Case(_OWN_NORM, between(by_hand, 4, 4), (20,)),
    "minus its mean, 4 entries": Case(
        "Centred entries are independent of each other",
        between(lambda x: x - torch.mean(x, -1, keepdim=True), 4, 4),
        (20,),
    ),
    "value plus advantages minus their mean": Case("A sum is independent of the mean of a part", Dueling, (20,)),
    "pooled minus itself": Case("A value is independent of its average over windows", pooled_minus_itself, (3, 8, 8)),
    "nearest upsampling, 3×3 convolution": Case("Copies by interpolation are independent", upsampled, (3, 8, 8)),
}
