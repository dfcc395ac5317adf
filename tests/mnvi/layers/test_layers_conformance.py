"""Layers that users bring beyond linear ones and convolutions: derivatives, float32 at extremes, compile and export.

Moments against sampled weights are in the file of each kind, which knows what it promises.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import foreign_classes as foreign
import pytest
import torch
from rule_checks import gaussian
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import mnvi
from mnvi.moments._torch import pytree

POSTERIOR = mnvi.MultiplicativeNoise(0.3)
TOKENS = torch.tensor([[0, 2, 2], [4, 1, 0]])
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "Embedding": (lambda: nn.Embedding(5, 3), ()),
    "Bilinear": (lambda: nn.Bilinear(2, 3, 2), ((2, 2), (2, 3))),
    "RNN": (lambda: nn.RNN(2, 3, batch_first=True), ((2, 3, 2),)),
    "LSTM": (lambda: nn.LSTM(2, 3, proj_size=2), ((3, 2, 2),)),
    "GRU": (lambda: nn.GRU(2, 3, bidirectional=True), ((3, 2, 2),)),
    "RNNCell": (lambda: nn.RNNCell(2, 3), ((2, 2), (2, 3))),
    "LSTMCell": (lambda: nn.LSTMCell(2, 3), ((2, 2),)),
    "GRUCell": (lambda: nn.GRUCell(2, 3), ((2, 2), (2, 3))),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), ((2, 3, 4),) * 3),
    "timm's Conv2dSame": (lambda: foreign.Conv2dSame(2, 3, 3, stride=2), ((1, 2, 4, 4),)),
    "timm's StdConv2d": (lambda: foreign.StdConv2d(2, 3, 3), ((1, 2, 4, 4),)),
    "timm's ScaledStdConv2d": (lambda: foreign.ScaledStdConv2d(2, 3, 3), ((1, 2, 4, 4),)),
    "transformers' Conv1D": (lambda: foreign.Conv1D(3, 4), ((2, 2, 4),)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(3, 2)), ((2, 3),)),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(3, 2)), ((2, 3),)),
}
NAMES = pytest.mark.parametrize("name", LAYERS)


def built(name: str) -> tuple[nn.Module, list[Any]]:
    """The layer in float64 and evaluation mode, and its inputs."""
    make, shapes = LAYERS[name]
    layer = mnvi.convert(make(), POSTERIOR).double().eval()
    return layer, [gaussian(*shape, seed=seed) for seed, shape in enumerate(shapes)] or [TOKENS]


def moments(out: Any) -> list[Tensor]:
    """Means and variances of all results that are random."""
    values = pytree.tree_leaves(out, is_leaf=lambda value: isinstance(value, mnvi.Gaussian))
    return [t for value in values if isinstance(value, mnvi.Gaussian) for t in (value.mean, value.var)]


@NAMES
def test_derivatives_of_both_orders_match_finite_differences(name: str) -> None:
    """With respect to all parameters and both moments of all inputs."""
    layer, inputs = built(name)
    names = [key for key, _ in layer.named_parameters()]
    random = [x for x in inputs if isinstance(x, mnvi.Gaussian)]
    tensors = [*layer.parameters(), *(t for x in random for t in (x.mean, x.var))]

    def function(*leaves: Tensor) -> tuple[Tensor, ...]:
        parts = leaves[len(names) :]
        given = [mnvi.Gaussian.trusted(*parts[i : i + 2]) for i in range(0, len(parts), 2)] or inputs
        out = torch.func.functional_call(layer, dict(zip(names, leaves[: len(names)], strict=True)), tuple(given))
        return tuple(moments(out))

    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True, atol=1e-5, rtol=1e-3)
    if name != "weight norm":  # the second derivative of torch's own weight norm is wrong, also without a posterior
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True, atol=1e-4, rtol=1e-3)


@NAMES
def test_float32_agrees_with_float64_and_gradients_are_finite_at_every_scale(name: str) -> None:
    exact, inputs = built(name)
    layer = copy.deepcopy(exact).float()
    error = 1e-2 if "RNN" in name or "LSTM" in name or "GRU" in name else 1e-4  # tables of tanh and sigmoid have seams
    for scale in (1e-6, 1e-3, 1.0, 1e3):
        for spread in (1e-12, 1e-6, 1.0, 1e6):
            scaled = [x if isinstance(x, Tensor) else mnvi.Gaussian(x.mean * scale, x.var * spread) for x in inputs]
            low = [x if isinstance(x, Tensor) else x.float() for x in scaled]
            high = [x if isinstance(x, Tensor) else x.double() for x in low]
            found, expected = moments(layer(*low)), moments(exact(*high))
            for (mean, var), (right, spread_) in zip(_pairs(found), _pairs(expected), strict=True):
                room = right.abs().amax() + spread_.amax().sqrt()
                assert ((mean - right).abs() <= max(1e-5, 0.01 * error) * room).all(), (scale, spread)
                assert ((var - spread_).abs() <= error * (spread_ + 0.1 * spread_.amax())).all(), (scale, spread)
            total = torch.stack([t.sum() for t in found]).sum()
            gradients = torch.autograd.grad(total, list(layer.parameters()), allow_unused=True)
            assert all(g is None or g.isfinite().all() for g in gradients), (scale, spread)


def _pairs(tensors: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


class Everything(nn.Module):
    """All layers at once, so that one graph holds them."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        layers, inputs = zip(*(built(name) for name in names), strict=True)
        self.layers, self.inputs = nn.ModuleList(layers), list(inputs)

    def forward(self, inputs: list[list[Any]]) -> list[Tensor]:
        return [t for layer, given in zip(self.layers, inputs, strict=True) for t in moments(layer(*given))]


LOOPS = [
    "RNN",
    "LSTM",
    "GRU",
]  # dynamo leaves torch's classes of these names, and what derives from them, in eager mode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda net: torch.compile(net, fullgraph=True, backend="aot_eager"), [n for n in LAYERS if n not in LOOPS]),
        (lambda net: torch.compile(net, backend="aot_eager"), ["RNN"]),
        (lambda net: torch.export.export(net, (net.inputs,)).module(), list(LAYERS)),
    ],
    ids=["compile", "compile loops", "export"],
)
def test_graphs_give_the_results_of_eager_mode(make: Callable, names: list[str]) -> None:
    net = Everything(names)
    with torch.no_grad():
        found, expected = make(net)(net.inputs), net(net.inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
