"""The covariance between positions, against its definition in float64."""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from mnvi.moments import position_slopes, position_weights, positions
from mnvi.moments.affine import Affine, independent_weights

# name: (linear operation, shape of the weight, shape of one input)
GEOMETRIES = {
    "conv1d": (Affine((1,), (1,), (1,), False, (0,), 1), (3, 2, 3), (2, 40)),
    "conv2d": (Affine((1, 1), (1, 1), (1, 1), False, (0, 0), 1), (3, 2, 3, 3), (2, 9, 8)),
    "strided": (Affine((2, 3), (1, 0), (1, 1), False, (0, 0), 1), (3, 2, 3, 2), (2, 12, 14)),
    "dilated, in groups": (Affine((1, 1), (2, 1), (2, 1), False, (0, 0), 2), (4, 2, 3, 3), (4, 9, 9)),
    "conv3d": (Affine((1, 1, 1), (1, 0, 0), (1, 1, 1), False, (0, 0, 0), 1), (2, 2, 3, 2, 1), (2, 4, 4, 4)),
    "transposed": (Affine((2, 2), (1, 1), (1, 1), True, (1, 0), 2), (4, 2, 3, 3), (4, 6, 6)),
    "pointwise": (Affine((1, 1), (0, 0), (1, 1), False, (0, 0), 1), (3, 2, 1, 1), (2, 3, 4)),
    "linear": (Affine(), (3, 2), (6, 2)),
}


def by_definition(affine: Affine, mean: Tensor, covariance: Tensor, weight: Tensor, spread: Tensor) -> Tensor:
    """Covariance between output positions, [units, positions, positions]: one weight, and one input unit, at a time.

    ``covariance`` is that of the positions of each input unit, [positions, positions].
    """
    units = torch.eye(weight.numel()).double().view(-1, *weight.shape)
    places = covariance.shape[0]
    total: Tensor | float = 0.0
    for j in range(mean.shape[-1] if affine.stride is None else mean.shape[0]):
        inputs = torch.zeros(places, *mean.shape).double()  # every position of unit j by itself
        for place in range(places):
            unit = inputs[place, :, j] if affine.stride is None else inputs[place, j]
            unit.view(-1)[place] = 1.0
        maps = torch.stack([_by_unit(affine, affine(inputs, w)) for w in units])  # [weights, inputs, units, positions]
        known = _by_unit(affine, affine(mean[None], torch.zeros_like(weight)))  # only for its shape
        second = covariance + _outer(mean[:, j] if affine.stride is None else mean[j])
        noise = torch.einsum("w,wiup,ik,wkuq->upq", spread.flatten(), maps, second, maps)
        whole = torch.einsum("w,wiup->iup", weight.flatten(), maps)
        total = total + noise + torch.einsum("iup,ik,kuq->upq", whole, covariance, whole)
        assert known.shape[1:] == maps.shape[2:]
    assert isinstance(total, Tensor)
    return total


def _outer(vector: Tensor) -> Tensor:
    flat = vector.flatten()
    return flat[:, None] * flat


def _by_unit(affine: Affine, out: Tensor) -> Tensor:
    """[batch, units, positions]"""
    return out.transpose(1, 2) if affine.stride is None else out.flatten(2)


class Case(NamedTuple):
    """One value for each unit of the output."""

    covariance: Tensor  # found
    expected_covariance: Tensor  # the mean over pairs of positions, by definition
    variance: Tensor  # found, the mean over positions
    expected_variance: Tensor


def _case(name: str, correlation: float | None, noise: float = 1.0) -> Case:
    affine, weight_shape, input_shape = GEOMETRIES[name]
    generator = torch.Generator().manual_seed(0)
    weight, spread = (torch.randn(weight_shape, generator=generator).double() for _ in range(2))
    spread = noise * spread.square()
    x = torch.randn(input_shape, generator=generator).double()
    if math.prod(weight_shape[2:]) > 1:  # the same for all taps
        x = x.flatten(1)[:, :1].view(-1, *[1] * (x.dim() - 1)).expand(input_shape).clone()
    places = x[..., 0].numel() if affine.stride is None else x[0].numel()
    covariance = torch.zeros(places, places).double()
    var = shared = None
    if correlation is not None:
        covariance = 0.3 * (correlation + (1 - correlation) * torch.eye(places)).double()
        var = torch.full_like(x, 0.3)[None]
        units = x[:1] if affine.stride is None else x[(slice(None), *[slice(1)] * (x.dim() - 1))]
        shared = torch.full_like(units, 0.3 * correlation)[None]
    expected = by_definition(affine, x, covariance, weight, spread)
    variance = expected.diagonal(dim1=1, dim2=2)
    mean, alone = independent_weights(affine, x[None], var, weight, None, spread, None)
    sums = position_weights.tap_sums(affine, x[None].shape, mean.shape, weight, spread)
    found = position_weights.through_weights(affine, x[None], var, shared, sums, None, mean.shape)
    count = variance.shape[1]
    assert found.shared.dim() == mean.dim()
    grown = alone if found.growth is None else alone * found.growth
    return Case(
        found.shared.flatten(),
        (expected.sum((1, 2)) - variance.sum(1)) / (count * (count - 1)),
        _by_unit(affine, grown)[0].mean(1),
        variance.mean(1),
    )


@pytest.mark.parametrize("name", ["linear", "pointwise"])
def test_the_covariance_for_a_known_input_is_exact_without_windows(name):
    case = _case(name, None)
    torch.testing.assert_close(case.covariance, case.expected_covariance)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_covariance_for_a_known_input_differs_at_borders_alone(name):
    case = _case(name, None)
    assert ((case.covariance - case.expected_covariance).abs() < 0.03 * case.expected_variance).all()


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["linear", "pointwise"])
def test_the_covariance_for_a_random_input_is_exact_without_windows(name, correlation):
    case = _case(name, correlation)
    torch.testing.assert_close(case.covariance, case.expected_covariance)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_covariance_for_a_random_input_differs_at_borders_alone(name, correlation):
    case = _case(name, correlation)
    assert ((case.covariance - case.expected_covariance).abs() < 0.03 * case.expected_variance).all()


@pytest.mark.parametrize("correlation", [None, 0.0, 0.5, 1.0, -0.005])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_mean_variance_is_exact(name, correlation):
    case = _case(name, correlation)
    torch.testing.assert_close(case.variance, case.expected_variance)


def _grown(weight: Tensor, spread: Tensor, correlation: float, size: int = 6) -> tuple[Tensor, Tensor]:
    """Variances of one channel's outputs under a kernel of this weight, and what the weights' noise alone gives."""
    affine = Affine((1,), (0,), (1,), False, (0,), 1)
    x, var = torch.ones(1, 1, size).double(), torch.full((1, 1, size), 0.3).double()
    mean, alone = independent_weights(affine, x, var, weight, None, spread, None)
    sums = position_weights.tap_sums(affine, x.shape, mean.shape, weight, spread)
    shared = torch.full((1, 1, 1), 0.3 * correlation).double()
    growth = position_weights.through_weights(affine, x, var, shared, sums, None, mean.shape).growth
    return alone * growth, affine(x.square() + var, spread)


def test_an_error_that_all_taps_share_leaves_the_noise_alone_where_they_cancel():
    weight = torch.tensor([[[1.0, -2.0, 1.0]]]).double()
    torch.testing.assert_close(*_grown(weight, torch.full_like(weight, 0.1), 1.0))


@pytest.mark.parametrize("correlation", [-3.0, -0.2, 2.0])  # 6 values have one between -0.2 and 1
@pytest.mark.parametrize("weight", [[1.0, -2.0, 1.0], [1.0, 1.0, 1.0]])
def test_no_covariance_takes_more_than_the_known_part_of_a_variance(weight, correlation):
    kernel = torch.tensor([[weight]]).double()
    found, noise = _grown(kernel, torch.full_like(kernel, 0.1), correlation)
    assert (found > noise - 1e-12).all()
    without, _ = _grown(kernel, torch.zeros_like(kernel), correlation)
    assert (without >= 0).all()


def test_gradients_of_grown_variances_agree_with_differences():
    generator = torch.Generator().manual_seed(0)
    var, growth = (torch.rand(shape, generator=generator).double() + 0.1 for shape in [(2, 3, 4), (2, 3, 1)])
    for value in (var, growth):
        value.requires_grad_()
    assert torch.autograd.gradcheck(position_weights.grow, (var, growth))
    assert torch.autograd.gradgradcheck(position_weights.grow, (var, growth))


def test_reshaping_keeps_positions_apart_from_channels():
    shared = torch.arange(6.0).view(2, 3, 1, 1)
    for after in [(2, 3, 20), (2, 3, 1, 20), (2, 3, 2, 2, 5), (6, 20), (2, 1, 3, 4, 5)]:
        found = positions.reshaped(shared, (2, 3, 4, 5), after)
        assert torch.equal(found.expand(after), shared.expand(2, 3, 4, 5).reshape(after))
    assert positions.reshaped(shared, (2, 3, 4, 5), (2, 60)) is None


@pytest.mark.parametrize("function", [torch.tanh, torch.square, torch.nn.functional.gelu])
def test_slope_and_curvature_are_mean_derivatives(function):
    mean, var = torch.linspace(-2, 2, 5).double(), torch.full((5,), 0.3).double()
    noise = torch.randn(200_000, 1, generator=torch.Generator().manual_seed(0)).double()

    def expectation(shifted: Tensor) -> Tensor:
        return function(shifted + var.sqrt() * noise).mean(0)

    z = (mean + var.sqrt() * noise).requires_grad_()
    (first,) = torch.autograd.grad(function(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    slope, curvature = position_slopes.slope_and_curvature(expectation, mean, var, expectation(mean))
    torch.testing.assert_close(slope, first.mean(0).detach(), rtol=0.01, atol=0.005)
    torch.testing.assert_close(curvature, second.mean(0), rtol=0.02, atol=0.005)


def test_a_relu_carries_the_covariance_of_weights_as_sampled_ones_do():
    """One layer of random weights on similar and dissimilar inputs: the first case of the closure."""
    generator = torch.Generator().manual_seed(0)
    inputs, units, places, alpha = 24, 400, 30, 0.05
    x = torch.randn(inputs, 3, generator=generator).double() @ torch.randn(3, places, generator=generator).double()
    x = x.relu()
    weight = torch.randn(units, inputs, generator=generator).double()
    mean, var = weight @ x, alpha * weight.square() @ x.square()
    covariance = alpha * torch.einsum("ij,jp,jq->ipq", weight.square(), x, x)
    pairs = places * (places - 1)
    shared = ((covariance.sum((1, 2)) - var.sum(1)) / pairs)[None, :, None]
    slope, curvature = position_slopes.relu_slope_and_curvature(mean, var)
    found = position_slopes.through_slope(shared, *(t[None] for t in (mean, var, slope, curvature))).mean()
    factors = torch.randn(4000, units, inputs, generator=generator, dtype=torch.float32) * alpha**0.5 + 1
    rectified = torch.relu((factors * weight.float()) @ x.float())
    total, own = rectified.sum(2).var(0), rectified.var(0).sum(1)
    expected = ((total - own) / pairs).mean()
    assert 0.8 < found / expected < 1.1
    without_similarity = (shared[0, :, 0] * slope.mean(1).square()).mean()
    assert without_similarity < found


@pytest.mark.parametrize("similarity", [0.2, 0.5, 0.8])
def test_deep_random_networks_have_about_half_the_slope_of_a_straight_line(similarity):
    """Noise of every layer of a wide network, as its tangent kernel adds it up."""
    generator = torch.Generator().manual_seed(0)
    similar = (similarity + 0.1 * torch.randn(20_000, generator=generator).double()).clamp(-0.99, 0.995)
    noise, itself, slopes = similar, 1.0, []
    for depth in range(8):
        if depth > 0:
            angle = torch.arccos(similar)
            noise = noise * (1 - angle / math.pi)
            similar = (torch.sin(angle) + similar * (math.pi - angle)) / math.pi
            noise, itself = noise + similar, itself + 1
        line = (similar - similar.mean()) / (1 - similar.mean())
        slopes.append(((noise * line).mean() / line.square().mean() / (itself - noise.mean())).item())
    assert slopes[0] == pytest.approx(1)
    assert all(after < before for before, after in itertools.pairwise(slopes))
    assert 0.4 < slopes[-1] < 0.65
