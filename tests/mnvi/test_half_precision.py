"""Half-precision networks and values: variances are squares, and must not leave the range of float16."""

import copy

import pytest
import torch
from torch import nn

import mnvi
from mnvi import Gaussian

HALF = [torch.float16, torch.bfloat16]
POSTERIORS = [mnvi.MultiplicativeNoise(1.0), mnvi.MeanField(1.0, -20.0), mnvi.SharedMeanField(1.0, -20.0)]
LAYERS = {"linear": (nn.Linear(3, 2), (1, 3)), "convolution": (nn.Conv1d(3, 2, 2), (1, 3, 4))}

every_dtype = pytest.mark.parametrize("dtype", HALF, ids=str)


@every_dtype
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("given", ["tensor", "float32 variance", "half-precision variance"])
def test_small_variances_of_weights_survive(dtype, kind, posterior, given):
    layer, shape = LAYERS[kind]
    layer = mnvi.convert(layer, posterior)
    with torch.no_grad():
        layer.weight.fill_(2.0**-11)  # exact in every dtype; its square is zero in float16
        layer.bias.zero_()
    x = torch.ones(shape)
    low, high = x.to(dtype), x
    if given != "tensor":
        var = torch.full(shape, 2.0**-3)
        low, high = Gaussian(low, var.to(dtype) if given.startswith("half") else var), Gaussian(x, var)
    half = copy.deepcopy(layer).to(dtype)
    out, expected = half(low), layer(high)
    assert (out.mean.dtype, out.var.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out.var, expected.var, rtol=2e-3, atol=0)
    out.var.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in half.parameters())


@every_dtype
@pytest.mark.parametrize("cast", [lambda x, d: x.to(d), lambda x, d: x.type(d), lambda x, d: x.to("cpu", d, copy=True)])
def test_casts_keep_variances_in_float32(dtype, cast):
    x = cast(Gaussian(torch.ones(1), torch.full((1,), 1e-9)), dtype)
    assert x.mean.dtype == dtype
    torch.testing.assert_close(x.var, torch.full((1,), 1e-9))


def test_named_casts_keep_variances_in_float32():
    x = Gaussian(torch.ones(1), torch.full((1,), 1e-9))
    for low in (x.half(), x.bfloat16()):
        torch.testing.assert_close(low.var, x.var)
    assert x.half().double().var.dtype == torch.float64


@every_dtype
def test_a_joint_gaussian_keeps_its_covariance(dtype):
    x = mnvi.JointGaussian(torch.ones(2), 1e-9 * torch.eye(2)).to(dtype)
    torch.testing.assert_close(x.cov, 1e-9 * torch.eye(2))


def test_the_reciprocal_does_not_overflow():
    x = Gaussian(torch.full((1,), 0.01), torch.full((1,), 1e-8))
    out = torch.reciprocal(x.half())
    assert out.mean.dtype == torch.float16
    torch.testing.assert_close(out.var, torch.reciprocal(x).var, rtol=2e-3, atol=0)


def test_a_plain_linear_layer_squares_its_weights_in_float32():
    layer = nn.Linear(2, 1, bias=False).half()
    nn.init.constant_(layer.weight, 2.0**-13)
    x = Gaussian(torch.ones(1, 2).half(), torch.ones(1, 2).half())
    assert layer(x).var.item() == 2.0**-25
