"""The covariance between positions, against its definition in float64."""

import pytest
import torch
from torch import Tensor

from mnvi.moments import positions
from mnvi.moments.affine import Affine

# name: (linear operation, shape of the weight, shape of one input)
GEOMETRIES = {
    "conv1d": (Affine((1,), (1,), (1,), False, (0,), 1), (3, 2, 3), (2, 7)),
    "conv2d": (Affine((1, 1), (1, 1), (1, 1), False, (0, 0), 1), (3, 2, 3, 3), (2, 5, 4)),
    "strided": (Affine((2, 3), (1, 0), (1, 1), False, (0, 0), 1), (3, 2, 3, 2), (2, 6, 7)),
    "dilated, in groups": (Affine((1, 1), (2, 1), (2, 1), False, (0, 0), 2), (4, 2, 3, 3), (4, 5, 5)),
    "conv3d": (Affine((1, 1, 1), (1, 0, 1), (1, 1, 1), False, (0, 0, 0), 1), (2, 2, 3, 2, 1), (2, 3, 3, 2)),
    "transposed": (Affine((2, 2), (1, 0), (1, 1), True, (1, 0), 2), (4, 2, 3, 3), (4, 3, 3)),
    "linear": (Affine(), (3, 2), (6, 2)),
}


def by_definition(affine: Affine, mean: Tensor, weight: Tensor, spread: Tensor) -> Tensor:
    """Mean over pairs of output positions of the covariance that the weights cause, one weight after the other."""
    units = torch.eye(weight.numel()).double().view(-1, *weight.shape)
    total: Tensor | float = 0.0
    for unit, s in zip(units, spread.flatten(), strict=True):
        seen = affine(mean, unit)
        dims = tuple(range(seen.dim() - 1)) if affine.stride is None else tuple(range(1, seen.dim()))
        total = total + s * seen.mean(dims).square()
    assert isinstance(total, Tensor)
    return total


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_covariance_of_a_known_input_is_that_of_its_weights(name):
    affine, weight_shape, input_shape = GEOMETRIES[name]
    generator = torch.Generator().manual_seed(0)
    weight, spread = (torch.rand(weight_shape, generator=generator).double() for _ in range(2))
    x = torch.randn(1, *input_shape, generator=generator).double()
    outputs = affine(x, weight).shape
    found = positions.through_weights(affine, x, None, weight, spread, None, outputs)
    torch.testing.assert_close(found.flatten(), by_definition(affine, x[0], weight, spread))
    assert found.dim() == len(outputs)


def test_reshaping_keeps_positions_apart_from_channels():
    shared = torch.arange(6.0).view(2, 3, 1, 1)
    for after in [(2, 3, 20), (2, 3, 1, 20), (2, 3, 2, 2, 5), (6, 20), (2, 1, 3, 4, 5)]:
        found = positions.reshaped(shared, (2, 3, 4, 5), after)
        assert torch.equal(found.expand(after), shared.expand(2, 3, 4, 5).reshape(after))
    assert positions.reshaped(shared, (2, 3, 4, 5), (2, 60)) is None


@pytest.mark.parametrize("function", [torch.tanh, torch.square, torch.nn.functional.gelu])
def test_the_slope_is_the_mean_derivative(function):
    mean, var = torch.linspace(-2, 2, 5).double(), torch.full((5,), 0.3).double()
    noise = torch.randn(400_000, 1, generator=torch.Generator().manual_seed(0)).double()

    def expectation(shifted: Tensor) -> Tensor:
        return function(shifted + var.sqrt() * noise).mean(0)

    z = (mean + var.sqrt() * noise).requires_grad_()
    (derivative,) = torch.autograd.grad(function(z).sum(), z)
    torch.testing.assert_close(positions.slope(expectation, mean, var), derivative.mean(0), rtol=0.02, atol=0.005)
