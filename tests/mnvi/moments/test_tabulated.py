"""Moments read from tables against the integrals that they are made from, and what autograd asks of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mnvi
from mnvi.moments.activations import gelu, hardswish, logistic, rectifiers, tabulated

RECTIFIERS = (
    logistic.silu,
    rectifiers.softplus,
    rectifiers.mish,
    rectifiers.gelu_tanh,
    gelu.gelu,
    hardswish.hardswish,
)
BOUNDED = (logistic.sigmoid, logistic.tanh)
ALL = (*RECTIFIERS, *BOUNDED)
EPSILON = torch.finfo(torch.float32).eps


def _inputs(count: int = 20_000) -> tuple[Tensor, Tensor]:
    """Means from -20 to 20 and beyond, many near -3 and 3; standard deviations from 1e-3 to 20; float32."""
    generator = torch.Generator().manual_seed(0)
    sigma = 1e-3 * torch.exp(math.log(2e4) * torch.rand(count, generator=generator))
    uniform = 40 * torch.rand(count, generator=generator) - 20
    noise = torch.randn(2, count, generator=generator)
    near_kinks = 3 * noise[1].sign() + 2 * sigma * noise[0]
    mean = torch.stack([uniform, (1 + 2 * sigma) * noise[0], near_kinks])
    return mean.gather(0, torch.arange(count)[None] % 3)[0], sigma.square()


def _scales(moments: Callable, var: Tensor) -> tuple[Tensor, Tensor]:
    """The largest deviation of a result, and the distance over which it changes."""
    sigma = var.double().sqrt()
    return sigma.clamp(max=1.0) if moments in BOUNDED else sigma, (1 + sigma.square()).sqrt()


@pytest.mark.parametrize("moments", ALL, ids=lambda moments: moments.__name__)
def test_table_is_within_its_documented_error_of_the_reference(moments: Callable) -> None:
    mean, var = _inputs()
    found, exact = moments(mean, var), moments.reference(mean.double(), var.double())
    scale, _ = _scales(moments, var)
    # torch rounds f itself relative to its argument
    assert ((found[0] - exact[0]).abs() <= 1e-4 * scale + 4 * EPSILON * (mean.abs() + exact[0].abs())).all()
    assert ((found[1] - exact[1]).abs() <= 2e-4 * scale.square()).all()


@pytest.mark.parametrize("moments", ALL, ids=lambda moments: moments.__name__)
def test_derivatives_are_within_their_documented_error_of_the_reference(moments: Callable) -> None:
    mean, var = _inputs()
    rough = mean.requires_grad_(), var.requires_grad_()
    wide = mean.detach().double().requires_grad_(), var.detach().double().requires_grad_()
    scale, length = _scales(moments, var.detach())
    share = scale / wide[1].detach().sqrt()
    if moments is hardswish.hardswish:  # changes over a distance of σ at its kinks
        length = wide[1].detach().sqrt()
    allowed = ((share, share / length), (scale.square() / length, share.square()))
    for i, (found, exact) in enumerate(zip(moments(*rough), moments.reference(*wide), strict=True)):
        pairs = zip(
            torch.autograd.grad(found.sum(), rough, retain_graph=True),
            torch.autograd.grad(exact.sum(), wide, retain_graph=True),
            strict=True,
        )
        for (actual, expected), limit in zip(pairs, allowed[i], strict=True):
            assert ((actual - expected).abs() <= 5e-4 * limit).all()


@pytest.mark.parametrize("layout", ["channels_last", "strided", "broadcast", "scalar", "large"])
def test_any_layout_gives_the_same_values(layout: str) -> None:
    generator = torch.Generator().manual_seed(1)
    shape = (3, 8, 64, 64) if layout == "large" else (2, 3, 4, 5)
    mean, var = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    if layout == "channels_last":
        mean = mean.to(memory_format=torch.channels_last)
    elif layout == "strided":
        mean, var = mean[..., ::2], var[..., ::2]
    elif layout == "broadcast":
        var = var[:1, :, :1]
    elif layout == "scalar":
        mean, var = mean[0, 0, 0, 0], var[0, 0, 0, 0]
    found = logistic.silu(mean, var)
    exact = logistic.silu.reference(*torch.broadcast_tensors(mean, var))
    for actual, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    inputs = mean.clone().requires_grad_(), var.clone().requires_grad_()
    gradients = torch.autograd.grad(sum(part.sum() for part in logistic.silu(*inputs)), inputs)
    for gradient, given in zip(gradients, inputs, strict=True):
        assert gradient.shape == given.shape


def test_values_keep_the_memory_order_of_the_mean() -> None:
    mean = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    expectation, variance = logistic.silu(mean, torch.ones_like(mean))
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in (expectation, variance))


def test_second_derivatives_are_those_of_the_reference() -> None:
    inputs = torch.tensor([0.3, -1.2], requires_grad=True), torch.tensor([0.5, 0.1], requires_grad=True)
    wide = tuple(t.detach().double().requires_grad_() for t in inputs)

    def second(moments: Callable, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(sum(t.sum() for t in moments(*given)), given, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in first), given)

    for found, exact in zip(second(logistic.silu, inputs), second(logistic.silu.reference, wide), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-3)


def test_option_asks_for_the_integrals() -> None:
    x = mnvi.Gaussian(*_inputs(100))
    for function in (torch.nn.functional.silu, torch.nn.functional.logsigmoid, torch.nn.functional.softplus):
        read = function(x)
        with mnvi.options(activation="quadrature"):
            integrated = function(x)
        exact = function(x.double())
        closer, further = (((found.var - exact.var).abs() / x.var).max() for found in (integrated, read))
        assert closer < further / 3


def test_very_wide_inputs_follow_the_function_seen_from_afar() -> None:
    mean, var = torch.tensor([-500.0, 0.0, 800.0]), torch.full((3,), 1e6)
    for moments, limit in ((logistic.silu, torch.relu), (rectifiers.mish, torch.relu)):
        found = moments(mean, var)
        exact = limit(mnvi.Gaussian(mean.double(), var.double()))
        assert ((found[0] - exact.mean).abs() <= 1e-4 * 1e3).all()
        assert ((found[1] - exact.var).abs() <= 1e-4 * 1e6).all()


def test_nothing_gives_nothing_and_what_is_no_number_shows() -> None:
    assert [part.shape for part in logistic.silu(torch.ones(0, 3), torch.ones(0, 3))] == [(0, 3), (0, 3)]
    unknown = torch.tensor([math.nan, 1.0]), torch.tensor([1.0, math.nan])
    assert all(part.isnan().all() for part in logistic.silu(*unknown))


def test_table_made_in_inference_mode_serves_training() -> None:
    table = tabulated.Table(torch.tanh, logistic.tanh.reference, degree=0)
    with torch.inference_mode():
        channels = table.channels(torch.device("cpu"))
    mean = torch.tensor([0.3], requires_grad=True)
    expectation, _ = tabulated._Read.apply(table, mean, torch.ones(1))
    assert torch.autograd.grad(expectation, mean)[0] > 0 and channels.isfinite().all()
