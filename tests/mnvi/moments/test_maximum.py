"""The larger of two Gaussians."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mnvi.moments.maximum import maximum


@pytest.mark.parametrize("mean_b", [-3.0, 0.0, 0.4, 2.5])
@pytest.mark.parametrize("var_b", [0.05, 1.0, 4.0])
def test_moments_are_those_of_a_dense_grid(mean_b, var_b):
    # P(max <= z) = Φ((z - a)/σ_a) Φ((z - b)/σ_b); a fine trapezoidal rule is exact to 1e-12 for smooth densities
    given = torch.tensor([0.3, 0.7, mean_b, var_b], dtype=torch.float64)
    z = torch.linspace(-30, 30, 200_001, dtype=torch.float64)
    normals = [torch.distributions.Normal(given[i], given[i + 1].sqrt()) for i in (0, 2)]
    density = sum(normals[i].log_prob(z).exp() * normals[1 - i].cdf(z) for i in (0, 1)).numpy()
    first = np.trapezoid(z.numpy() * density, z.numpy())
    second = np.trapezoid((z.numpy() - first) ** 2 * density, z.numpy())
    assert [part.item() for part in maximum(*given)] == pytest.approx([first, second], rel=1e-9)


def test_maximum_is_stable_where_clarks_own_form_cancels():
    mean_a, mean_b = torch.tensor([1e4, 1e4, 1e4, -1e4, 0.0]), torch.tensor([1e4, 9.999e3, 0.0, -1e4, 1e-3])
    var_a, var_b = torch.tensor([1e-4, 1e-2, 1e2, 1e-12, 1e-6]), torch.tensor([1e-4, 1e-2, 1e-2, 1e-8, 1e-12])
    low = maximum(mean_a, var_a, mean_b, var_b)
    high = maximum(*(t.double() for t in (mean_a, var_a, mean_b, var_b)))
    scale = (var_a + var_b).double()
    assert ((low[1] - high[1]).abs() / scale).max() < 1e-5
    torch.testing.assert_close(low[0].double(), high[0], rtol=1e-6, atol=1e-6)
