"""Products, dropout and softmax: small enough cases to integrate or enumerate them in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conformance import dense_moments
from torch import Tensor

from mnvi.moments import attention, dropout, joint, products
from mnvi.moments.activations.relu import relu

PAIRS = [(0.0, 1.0), (-1.2, 0.3), (2.0, 0.05)]


def single(*values: float) -> list[Tensor]:
    return [torch.tensor([value], dtype=torch.float64) for value in values]


def over_two(function, first: tuple[float, float], second: tuple[float, float], rho: float = 0.0) -> list[np.ndarray]:
    """Mean and variance of a function of two Gaussians with a correlation, by a product of 200 × 200 nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()
    x, y = np.meshgrid(nodes, nodes, indexing="ij")
    a = first[0] + np.sqrt(first[1]) * x
    b = second[0] + np.sqrt(second[1]) * (rho * x + np.sqrt(1 - rho**2) * y)
    mass = np.outer(weights, weights)
    values = function(a, b)
    mean = (mass * values).sum()
    return [mean, (mass * np.square(values - mean)).sum()]


@pytest.mark.parametrize("first", PAIRS)
@pytest.mark.parametrize("second", PAIRS)
def test_products_are_exact(first: tuple[float, float], second: tuple[float, float]) -> None:
    found = products.product(*single(*first, *second))
    assert [part.item() for part in found] == pytest.approx(over_two(np.multiply, first, second), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("mean", "var"), PAIRS)
def test_squares_are_exact(mean: float, var: float) -> None:
    found = products.square(*single(mean, var))
    assert [part.item() for part in found] == pytest.approx(dense_moments(torch.square, mean, var, ()), rel=1e-9)


@pytest.mark.parametrize(("mean", "var"), PAIRS)
@pytest.mark.parametrize("p", [0.0, 0.3, 0.9])
def test_dropout_has_the_moments_of_its_two_outcomes(mean: float, var: float, p: float) -> None:
    first, second = mean, (mean**2 + var) / (1 - p)
    expected = [first, second - first**2]
    assert [part.item() for part in dropout.dropout(*single(mean, var), p)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("mean", "var"), PAIRS)
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_alpha_dropout_has_the_moments_of_its_two_masks(mean: float, var: float, p: float) -> None:
    kept, dropped = (
        [part.item() for part in dropout.masked_alpha_dropout(*single(mean, var), p, torch.tensor([mask]))]
        for mask in (True, False)
    )
    first = (1 - p) * kept[0] + p * dropped[0]
    second = (1 - p) * (kept[1] + kept[0] ** 2) + p * (dropped[1] + dropped[0] ** 2)
    found = dropout.alpha_dropout(*single(mean, var), p)
    assert [part.item() for part in found] == pytest.approx([first, second - first**2], rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("gap", [0.0, 1.0, 4.0])
def test_two_logits_are_within_the_documented_error(gap: float) -> None:
    # the softmax of two logits is the sigmoid of their difference, and so is its logarithm a function of it
    mean, var = torch.tensor([gap, 0.0], dtype=torch.float64), torch.tensor([0.1, 0.1], dtype=torch.float64)
    for moments, function, in_mean, in_std in (
        (attention.softmax, torch.sigmoid, 0.0014, 0.0034),
        (attention.log_softmax, F.logsigmoid, 0.0034, 0.017),
    ):
        expectation, variance = moments(mean, var, -1)
        exact = dense_moments(function, gap, 0.2, ())
        assert abs(expectation[0].item() - exact[0]) < in_mean
        assert abs(variance[0].item() ** 0.5 - exact[1] ** 0.5) < in_std


def test_logsumexp_of_two_is_within_the_documented_error() -> None:
    exact = over_two(np.logaddexp, (0.5, 0.1), (-0.2, 0.1))
    mean, var = torch.tensor([0.5, -0.2], dtype=torch.float64), torch.tensor([0.1, 0.1], dtype=torch.float64)
    expectation, variance = attention.logsumexp(mean, var, -1)
    assert abs(expectation.item() - exact[0]) < 0.0018 and abs(variance.item() ** 0.5 - exact[1] ** 0.5) < 0.005


@pytest.mark.parametrize("rho", [-0.9, -0.3, 0.0, 0.5, 0.95])
def test_the_covariance_of_two_rectified_values_is_within_the_documented_error(rho: float) -> None:
    for means in ((0.0, 0.0), (0.7, -0.4)):
        mean = torch.tensor(means, dtype=torch.float64)
        cov = torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64)
        out, found = joint.relu(mean, cov, 0.0)
        rectified = [(m, 1.0) for m in means]
        product = over_two(lambda a, b: np.maximum(a, 0) * np.maximum(b, 0), *rectified, rho)[0]
        exact = relu(mean, torch.ones(2, dtype=torch.float64))
        assert found[0, 1].item() == pytest.approx(product - float(exact[0].prod()), abs=0.006 + 1e-3)  # of the nodes
        torch.testing.assert_close((out, found.diagonal()), exact)


def test_a_linear_layer_with_random_weights_has_the_covariance_of_its_sums() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, spread = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    mean, root = torch.randn(4, generator=generator, dtype=torch.float64), torch.randn(4, 4, generator=generator)
    spread, cov = spread.square(), root.double() @ root.double().T
    expectation, found = joint.linear(mean, cov, weight, weight_var=spread)
    second = cov + torch.outer(mean, mean)
    expected = weight @ cov @ weight.T + torch.diag(spread @ second.diagonal())
    torch.testing.assert_close((expectation, found), (weight @ mean, expected))


def test_the_factor_of_a_singular_covariance_is_that_of_its_correlations() -> None:
    cov = torch.ones(3, 3, dtype=torch.float64) * 4  # rank one
    factor = joint.correlation_factor(cov)
    torch.testing.assert_close(factor @ factor.T, torch.ones(3, 3, dtype=torch.float64), rtol=1e-3, atol=1e-3)


def test_the_first_order_relu_keeps_covariances_between_positive_means_alone() -> None:
    cov = torch.tensor([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 3.0]], dtype=torch.float64)
    mean, found = joint.first_order_relu(torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64), cov, 0.0)
    assert mean.tolist() == [1.0, 0.0, 2.0]
    assert found.tolist() == [[2.0, 0.0, 0.1], [0.0, 0.0, 0.0], [0.1, 0.0, 3.0]]
