"""Convolutions with one output channel against torch's own."""

from __future__ import annotations

import pytest
import torch

from mnvi.moments.affine import Affine
from mnvi.moments.one_channel import one_channel, one_channel_gradients, separable
from mnvi.moments.tracing import for_compiler

CASES = {
    "linear": (Affine(), (3, 6), (1, 6)),
    "1d": (Affine((1,), (0,), (1,), False, (0,)), (2, 6, 7), (1, 6, 3)),
    "padded": (Affine((1, 1), (1, 2), (1, 1), False, (0, 0)), (2, 6, 4, 5), (1, 6, 3, 3)),
    "strided, dilated": (Affine((2, 3), (1, 0), (1, 2), False, (0, 0)), (2, 6, 7, 8), (1, 6, 2, 3)),
    "one tap": (Affine((1, 1), (0, 0), (1, 1), False, (0, 0)), (2, 6, 3, 4), (1, 6, 1, 1)),
    "one channel in": (Affine((1, 1), (0, 0), (1, 1), False, (0, 0)), (2, 1, 6, 6), (1, 1, 5, 5)),
    "25 taps": (Affine((1, 1), (2, 2), (1, 1), False, (0, 0)), (2, 6, 6, 5), (1, 6, 5, 5)),
    "unbatched": (Affine((1, 1), (1, 1), (1, 1), False, (0, 0)), (6, 4, 5), (1, 6, 3, 3)),
    "grouped": (Affine((1, 1), (1, 1), (1, 1), False, (0, 0), 2), (2, 6, 4, 5), (2, 3, 3, 3)),
    "3d": (Affine((1, 2, 1), (0, 1, 0), (1, 1, 1), False, (0, 0, 0)), (2, 6, 3, 4, 3), (1, 6, 2, 3, 2)),
    "transposed": (Affine((2, 2), (1, 1), (1, 1), True, (1, 1)), (2, 6, 3, 3), (6, 1, 3, 3)),
}


def laid_out(shape: tuple[int, ...], last: bool) -> torch.Tensor:
    x = torch.randn(shape, dtype=torch.float64)
    return x.contiguous(memory_format=torch.channels_last) if last and len(shape) == 4 else x


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gradients_for_the_compiler_are_those_of_torchs_convolution(case: str, last: bool) -> None:
    torch.manual_seed(0)
    affine, shape, kernel = CASES[case]
    x, weight = laid_out(shape, last).requires_grad_(), laid_out(kernel, last).requires_grad_()
    expected = affine(x, weight)
    grad = torch.randn_like(expected)
    with for_compiler():
        out = one_channel(affine, x, weight)
        found = torch.autograd.grad(out, (x, weight), grad)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (x, weight), grad))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_torchs_convolution(case: str, last: bool, fused: bool) -> None:
    torch.manual_seed(0)
    affine, shape, kernel = CASES[case]
    x, weight = laid_out(shape, last), laid_out(kernel, last)
    with for_compiler(fused):
        torch.testing.assert_close(one_channel(affine, x, weight), affine(x, weight))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_torchs_convolution(case: str, last: bool) -> None:
    torch.manual_seed(0)
    affine, shape, kernel = CASES[case]
    x, weight = laid_out(shape, last).requires_grad_(), laid_out(kernel, last).requires_grad_()
    out = affine(x, weight)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (x, weight), grad)
    found = one_channel_gradients(affine, grad, x.detach(), weight.detach(), True, True)
    torch.testing.assert_close(found, expected)
    only_weight = one_channel_gradients(affine, grad, x.detach(), weight.detach(), False, True)
    assert only_weight[0] is None
    torch.testing.assert_close(only_weight[1], expected[1])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", ["1d", "padded", "strided, dilated", "one channel in", "25 taps", "unbatched", "3d"])
def test_channels_and_taps_one_after_the_other(case: str, last: bool, fused: bool) -> None:
    torch.manual_seed(0)
    affine, shape, kernel = CASES[case]
    x, weight = laid_out(shape, last), laid_out(kernel, last)
    channels, taps = weight.flatten(2).sum(2).view(1, -1, *(1,) * (len(kernel) - 2)), weight[:, :1]
    with for_compiler(fused):
        torch.testing.assert_close(separable(affine, x, channels, taps), affine(x, channels * taps))
