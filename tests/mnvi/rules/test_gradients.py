"""A ``torch.autograd.Function`` does not cut the gradient of a Gaussian in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x * torch.sigmoid(x)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return gradient * gate * (1 + x * (1 - gate))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Net(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(3, 4), nn.Linear(4, 2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize("function", [Swish, Doubled])
def test_it_is_refused_where_a_gradient_would_be_cut(function: Any) -> None:
    net = mnvi.convert(Net(function.apply), mnvi.MultiplicativeNoise(1.0))
    name = function.__name__
    message = rf"{name}.apply: .*would cut its gradient \(.*test_gradients.py, line \d+, in forward\).*mnvi.elementwise"
    with pytest.raises(RuntimeError, match=message):
        net(torch.ones(2, 3))


def test_it_runs_where_no_gradient_is_asked_for() -> None:
    net = mnvi.convert(Net(Doubled.apply), mnvi.MultiplicativeNoise(1.0))
    with torch.no_grad():
        assert net(torch.ones(2, 3)).shape == (2, 2)


def test_elementwise_gives_it_moments_and_a_gradient() -> None:
    mean, var = torch.randn(5, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    gradients = []
    for function in (mnvi.elementwise(Swish.apply, order=60), F.silu):
        leaves = mean.clone().requires_grad_(), var.clone().requires_grad_()
        out = function(mnvi.Gaussian(*leaves))
        gradients.append(torch.autograd.grad((out.mean + out.var).sum(), leaves))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_switching_gradients_off_is_no_mistake() -> None:
    x = mnvi.Gaussian(torch.zeros(2, requires_grad=True), torch.ones(2))
    with torch.no_grad():
        assert not torch.relu(x).requires_grad
