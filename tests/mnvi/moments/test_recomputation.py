"""Compiled training keeps what goes into an activation, not what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_versions import newer_torch

import mnvi
from mnvi.moments.activations.relu import formula, relu
from mnvi.moments.recomputation import is_recomputed, recomputed

BACKEND = "aot_eager_decomp_partition"  # divides forward and backward as the default backend does, without a compiler


def kept(function: Callable[[], Tensor]) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        function()
    return shapes


def test_outside_of_compiled_code_it_is_the_plain_call() -> None:
    x = torch.tensor([3.0], requires_grad=True)
    assert not is_recomputed(x)
    assert recomputed(torch.square, x) == 9.0


@newer_torch("the compiler of torch 2.11 keeps more for the backward pass; results are the same")
@pytest.mark.parametrize("variance", ["exact", "factored"])
def test_compiled_training_keeps_each_layers_output_once(variance: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3))
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0, variance=variance))  # type: ignore[arg-type]
    x = torch.randn(4, 16, 9, 9)

    def loss() -> Tensor:
        out = bayesian(x)
        return out.mean.square().mean() + out.var.log().mean() + mnvi.kl_divergence(bayesian)

    loss().backward()
    expected = [p.grad.clone() for p in bayesian.parameters()]
    bayesian.zero_grad()
    compiled = torch.compile(loss, backend=BACKEND)
    compiled().backward()
    for parameter, gradient in zip(bayesian.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)
    shapes = kept(compiled)
    # a mean; with exact variances also the variance, and the second moments that the next layer reads
    assert shapes.count((4, 32, 7, 7)) == (3 if variance == "exact" else 1)


@newer_torch("the compiler of torch 2.11 keeps more for the backward pass; results are the same")
def test_what_compiled_training_keeps_lies_as_images_with_channels_last_do() -> None:
    """In another order the kernels that read it would transpose it block by block, which takes most of a step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 3))
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0, variance="factored"))
    bayesian.to(memory_format=torch.channels_last)
    x = torch.randn(4, 16, 10, 10).to(memory_format=torch.channels_last)
    strides: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def note(tensor: Tensor) -> Tensor:
        strides.append((tuple(tensor.shape), tensor.stride()))
        return tensor

    @torch.compile
    def loss() -> Tensor:
        out = bayesian(x)
        return out.mean.square().mean() + out.var.log().mean()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss()
    of_the_hidden_layer = [(shape, stride) for shape, stride in strides if math.prod(shape) == 4 * 32 * 8 * 8]
    assert len(of_the_hidden_layer) >= 2
    for shape, stride in of_the_hidden_layer:
        assert stride[shape.index(32)] == 1, (shape, stride)


def test_the_compiled_backward_pass_of_a_relu_computes_no_derivatives_of_its_ingredients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the gradients of Φ and φ/σ, which are zero, are computed")

    monkeypatch.setattr(formula, "gradients_of_ingredients", refuse)
    mean, var = torch.randn(5, requires_grad=True), torch.rand(5, requires_grad=True)

    @torch.compile(backend=BACKEND)
    def loss(mean: Tensor, var: Tensor) -> Tensor:
        expectation, variance = relu(mean, var)
        return expectation.sum() + variance.sum()

    expectation, variance = relu(mean, var)
    expected = torch.autograd.grad(expectation.sum() + variance.sum(), (mean, var))
    torch.testing.assert_close(torch.autograd.grad(loss(mean, var), (mean, var)), expected)


@newer_torch("the compiler of torch 2.11 keeps more for the backward pass; results are the same")
def test_compiled_relu_and_max_pool_keep_only_the_winners() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3))
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0, variance="factored"))
    x = torch.randn(4, 16, 10, 10)

    def loss() -> Tensor:
        out = bayesian(x)
        return out.mean.square().mean() + out.var.log().mean()

    expected = torch.autograd.grad(loss(), list(bayesian.parameters()))
    compiled = torch.compile(loss, backend=BACKEND)
    found = torch.autograd.grad(compiled(), list(bayesian.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (4, 32, 8, 8) not in kept(compiled)
