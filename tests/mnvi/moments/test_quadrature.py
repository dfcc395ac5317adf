"""Nodes and weights, and the two approximations for any elementwise function; the rules' tests have the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conformance import dense_moments

from mnvi.moments.quadrature import column, gauss_hermite, gauss_legendre, quadrature_moments, taylor_moments


@pytest.mark.parametrize("order", [2, 3, 10, 20, 41])
def test_hermite_nodes_are_those_of_numpy(order):
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    ours = np.array(gauss_hermite(order))
    np.testing.assert_allclose(ours[:, 0], nodes, atol=1e-12)
    np.testing.assert_allclose(ours[:, 1], weights / weights.sum(), atol=1e-14)


@pytest.mark.parametrize("order", [2, 5, 20])
def test_legendre_nodes_are_those_of_numpy_on_the_unit_interval(order):
    nodes, weights = np.polynomial.legendre.leggauss(order)
    ours = np.array(gauss_legendre(order))
    np.testing.assert_allclose(ours, np.stack([(nodes + 1) / 2, weights / 2], 1), atol=1e-14)


@pytest.mark.parametrize("function", [torch.tanh, torch.sin, lambda z: torch.exp(-z * z)])
def test_quadrature_of_a_smooth_function_is_that_of_a_dense_grid(function):
    for mean in (-1.5, 0.2, 2.0):
        for var in (0.01, 0.3):
            inputs = torch.tensor([[mean], [var]], dtype=torch.float64)
            expected = dense_moments(function, mean, var, ())
            found = quadrature_moments(function, *inputs, gauss_hermite(20))
            assert [part.item() for part in found] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_first_order_rule_is_the_limit_of_a_small_variance():
    mean, var = torch.linspace(-2, 2, 9, dtype=torch.float64), torch.full((9,), 1e-8, dtype=torch.float64)
    first_order = taylor_moments(torch.tanh, mean, var)
    exact = [dense_moments(torch.tanh, m, 1e-8, ()) for m in mean.tolist()]
    for part, expected in zip(first_order, zip(*exact, strict=True), strict=True):
        torch.testing.assert_close(part, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-8)


def test_a_column_broadcasts_over_every_entry():
    like = torch.ones(2, 3, dtype=torch.float64)
    assert column([1.0, 2.0], like).shape == (2, 1, 1) and column([1.0], like).dtype == torch.float64
