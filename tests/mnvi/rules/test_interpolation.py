"""Values read at the points of a grid: against torch's own weights."""

import pytest
import torch
import torch.nn.functional as F
from rule_checks import (
    assert_gradients_are_right,
    assert_half_precision_keeps_the_variance,
    assert_zero_variance_is_deterministic,
    gaussian,
)
from torch import Tensor

import mnvi


def points(*shape: int) -> Tensor:
    """Inside the input and beyond its borders."""
    return 3 * torch.rand(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64) - 1.5


def assert_squared_weights(x: mnvi.Gaussian, grid: Tensor, **options) -> None:
    """Against the Jacobian of torch's function, which holds the weights."""
    out = F.grid_sample(x, grid, **options)
    weights = torch.func.jacrev(lambda mean: F.grid_sample(mean, grid, **options))(x.mean)
    dims = list(range(x.dim()))
    expected = torch.tensordot(weights.square(), x.var, (list(range(-x.dim(), 0)), dims))
    torch.testing.assert_close(out.mean, F.grid_sample(x.mean, grid, **options))
    torch.testing.assert_close(out.var, expected)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_images_are_read_with_squared_weights(mode, padding_mode, align_corners):
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    assert_squared_weights(gaussian(2, 3, 4, 5), points(2, 6, 2, 2), **options)
    assert_squared_weights(gaussian(1, 2, 3, 4, 2), points(1, 2, 3, 2, 3), **options)


@pytest.mark.parametrize("align_corners", [True, False])
def test_bicubic_reads_sixteen_neighbours(align_corners):
    assert_squared_weights(gaussian(2, 2, 5, 6), points(2, 4, 3, 2), mode="bicubic", align_corners=align_corners)
    inner = 0.2 * points(1, 3, 3, 2)  # where no entry is read twice
    for padding_mode in ("border", "reflection"):
        options = {"mode": "bicubic", "padding_mode": padding_mode, "align_corners": align_corners}
        assert_squared_weights(gaussian(1, 2, 9, 9), inner, **options)


def test_a_single_row_is_read_by_reflection():
    x, grid = gaussian(1, 1, 1, 3), points(1, 2, 2, 2)
    assert_squared_weights(x, grid, padding_mode="reflection", align_corners=True)


def test_gradients_reach_the_input_and_the_grid():
    x, grid = gaussian(1, 2, 4, 4), 0.6 * points(1, 2, 2, 2)
    for mode in ("bilinear", "bicubic"):
        assert_gradients_are_right(
            lambda x, grid, mode=mode: F.grid_sample(x, grid, mode, align_corners=False), x, grid
        )


def test_zero_variance_and_half_precision():
    def read(x):
        return F.grid_sample(x, points(1, 3, 3, 2).to(x.dtype), align_corners=True)

    assert_zero_variance_is_deterministic(read, gaussian(1, 2, 4, 4))
    assert_half_precision_keeps_the_variance(read, gaussian(1, 2, 4, 4))


def test_a_random_grid_is_refused():
    with pytest.raises(TypeError, match=r"grid_sample: the grid must be a tensor, got a Gaussian; pass its mean"):
        F.grid_sample(torch.ones(1, 1, 2, 2).double(), gaussian(1, 2, 2, 2))


def test_compile_without_graph_breaks():
    def read(x, grid):
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)

    x, grid = gaussian(1, 2, 4, 4, dtype=torch.float32), points(1, 3, 3, 2).float()
    expected, out = read(x, grid), torch.compile(read, fullgraph=True, backend="aot_eager")(x, grid)
    torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))
