"""Operations that are linear in their input: for independent entries the variance goes through the squared weights.

The weights are found by applying torch's own operation to unit vectors, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments import affine, batch_norms, interpolation, normalization, pooling

LINE, IMAGE = (1, 2, 7), (1, 2, 6, 5)
Case = tuple[Callable, Callable, tuple[int, ...]]  # moments, torch's operation, shape of the input


def noise(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean, var = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    return mean, var.square()


CHANNEL = torch.tensor([0.7, -1.3], dtype=torch.float64)
POSITIVE = torch.tensor([0.4, 2.0], dtype=torch.float64)
CASES: dict[str, Case] = {
    "avg_pool": (lambda m, v: pooling.avg_pool(m, v, 2, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "avg_pool, padding does not count": (
        lambda m, v: pooling.avg_pool(m, v, 1, 3, 2, 1, True, False),
        lambda x: F.avg_pool1d(x, 3, 2, 1, True, False),
        LINE,
    ),
    "adaptive_avg_pool": (
        lambda m, v: pooling.adaptive_avg_pool(m, v, 2, (4, 3)),
        lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
        IMAGE,
    ),
    **{
        f"interpolate, {mode}": (
            lambda m, v, mode=mode: interpolation.interpolate(m, v, scale_factor=1.7, mode=mode),
            lambda x, mode=mode: F.interpolate(x, scale_factor=1.7, mode=mode),
            IMAGE,
        )
        for mode in ("nearest", "bilinear", "bicubic", "area")
    },
    "batch_norm": (
        lambda m, v: batch_norms.batch_norm(m, v, CHANNEL, POSITIVE, CHANNEL, CHANNEL),
        lambda x: F.batch_norm(x, CHANNEL, POSITIVE, CHANNEL, CHANNEL),
        IMAGE,
    ),
    "instance_norm": (
        lambda m, v: normalization.instance_norm(m, v, CHANNEL, POSITIVE, use_input_stats=False),
        lambda x: F.instance_norm(x, CHANNEL, POSITIVE, use_input_stats=False),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_variance_goes_through_the_squared_weights(name: str) -> None:
    moments, operation, shape = CASES[name]
    mean, var = noise(shape)
    found = moments(mean, var)
    offset = operation(torch.zeros(shape, dtype=torch.float64))
    units = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    weights = torch.stack([operation(unit) - offset for unit in units])
    torch.testing.assert_close(found[0], operation(mean))
    torch.testing.assert_close(found[1], (weights.square() * var.view(-1, *[1] * offset.dim())).sum(0))


LAYERS: dict[str, tuple[affine.Affine, tuple[int, ...], tuple[int, ...]]] = {
    "linear": (affine.Affine(), (3, 4), (2, 4)),
    "convolution": (affine.Affine((2,), (1,), (1,), False, (0,), 2), (2, 4, 6), (2, 2, 3)),
    "transposed": (affine.Affine((2,), (1,), (1,), True, (1,), 1), (2, 3, 4), (3, 2, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_random_weights_add_the_moments_of_every_product(name: str) -> None:
    # V = Σ s·x² + s·v + m²·v for independent weights of mean m and variance s and inputs of mean x and variance v
    operation, inputs, shape = LAYERS[name]
    (mean, var), (weight, spread) = noise(inputs), noise(shape)
    found = affine.independent_weights(operation, mean, var, weight, None, spread, None)
    torch.testing.assert_close(found[0], operation(mean, weight, None))
    expected = operation(mean.square() + var, spread, None) + operation(var, weight.square(), None)
    torch.testing.assert_close(found[1], expected)


@pytest.mark.parametrize("name", LAYERS)
def test_multiplicative_noise_is_independent_weights_with_a_variance_in_proportion(name: str) -> None:
    operation, inputs, shape = LAYERS[name]
    (mean, var), (weight, _) = noise(inputs), noise(shape)
    units = inputs[operation.channel_dim]
    alpha = torch.linspace(0.1, 2, units, dtype=torch.float64)
    spread = operation.along_weight(alpha, weight) * weight.square()
    found = affine.multiplicative_noise(operation, mean, var, weight, None, operation.along_input(alpha))
    expected = affine.independent_weights(operation, mean, var, weight, None, spread.expand_as(weight), None)
    for part, other in zip(found, expected, strict=True):
        torch.testing.assert_close(part, other)


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "rms_norm", "normalize"])
def test_without_noise_a_normalisation_is_torchs(name: str) -> None:
    mean, _ = noise((3, 4))
    zero = torch.zeros_like(mean)
    calls: dict[str, tuple[tuple[Tensor, Tensor], Tensor]] = {
        "layer_norm": (normalization.layer_norm(mean, zero, [4]), F.layer_norm(mean, [4])),
        "group_norm": (normalization.group_norm(mean, zero, 2), F.group_norm(mean, 2)),
        "rms_norm": (normalization.rms_norm(mean, zero, [4]), F.rms_norm(mean, [4])),
        "normalize": (normalization.normalize(mean, zero), F.normalize(mean)),
    }
    (expectation, variance), expected = calls[name]
    torch.testing.assert_close(expectation, expected)
    assert (variance == 0).all()
