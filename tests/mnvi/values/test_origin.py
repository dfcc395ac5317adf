"""Values remember where they come from: views write through to their source, and chains hold nothing alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mnvi import Gaussian
from mnvi.values.origin import LONGEST, common_ancestor


def gaussian(*shape: int) -> Gaussian:
    return Gaussian(torch.randn(shape), torch.rand(shape) + 0.1)


def part(x: Any) -> list[Any]:
    x[:, 0].mul_(5)
    return [x]


def several_views(x: Any) -> list[Any]:
    flat, column = x.view(-1), x[:, 1]
    x.mul_(2)
    column.add_(1)
    flat[0].mul_(7)
    return [x, flat, column]


def view_of_a_view(x: Any) -> list[Any]:
    x.view(2, 12)[0].chunk(2)[1].neg_()
    return [x]


def copied_entries(x: Any) -> list[Any]:
    rows = x[[0, 1]]
    rows.mul_(3)
    return [x, rows]


def transposed(x: Any) -> list[Any]:
    y = x.T
    y[0] = 0.0
    x[1] += 2
    y[2, 3] = x[0, 0]
    return [x, y]


def copied_by_reshape(x: Any) -> list[Any]:
    y = x.permute(1, 0).reshape(-1)
    y.mul_(2)
    return [x, y]


def pieces_of_a_temporary(x: Any) -> list[Any]:
    a, b = (x * 1).chunk(2)
    a.add_(b)
    return [a, b]


def repeated(x: Any) -> list[Any]:
    y = x.expand(2, 4, 6)
    x.mul_(2)
    return [x, y]


def augmented(x: Any) -> list[Any]:
    y = x[0]
    y.neg_()
    z = y[:3]
    z -= 1
    w = x.clone()
    w[0].mul_(0)
    return [x, y, z, w]


WRITES: list[Callable[[Any], list[Any]]] = [
    part,
    several_views,
    view_of_a_view,
    copied_entries,
    transposed,
    copied_by_reshape,
    pieces_of_a_temporary,
    repeated,
    augmented,
]


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_a_write_in_place_reaches_what_it_reaches_in_torch(write: Callable[[Any], list[Any]]) -> None:
    x = gaussian(4, 6)
    expected = write(x.mean.clone())
    for value, mean in zip(write(x), expected, strict=True):
        torch.testing.assert_close(value.mean, mean, rtol=0, atol=0)


@pytest.mark.parametrize("write", [part, view_of_a_view, copied_entries, copied_by_reshape], ids=lambda f: f.__name__)
def test_a_compiled_write_in_place_reaches_what_it_reaches_in_torch(write: Callable[[Any], list[Any]]) -> None:
    x = gaussian(4, 6)
    expected = write(Gaussian(x.mean.clone(), x.var.clone()))
    found = torch.compile(lambda x: write(x * 1), fullgraph=True, backend="eager")(x)
    for value, other in zip(found, expected, strict=True):
        assert torch.equal(value.mean, other.mean) and torch.equal(value.var, other.var)


def test_a_write_to_a_view_scales_the_variance() -> None:
    x = gaussian(3, 3)
    var = x.var.clone()
    x[:, 0].mul_(5)
    torch.testing.assert_close(x.var, torch.cat([25 * var[:, :1], var[:, 1:]], 1))


def test_a_write_to_a_view_keeps_gradients() -> None:
    mean, var = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    x = Gaussian(mean * 2, var * 1)
    x[0].mul_(3)
    (x.mean + x.var).sum().backward()
    assert mean.grad is not None and var.grad is not None
    assert mean.grad.tolist() == [[6.0] * 3, [2.0] * 3] and var.grad.tolist() == [[9.0] * 3, [1.0] * 3]


def test_a_value_written_to_is_another_value() -> None:
    x = gaussian(4)
    before, row = x * 2, x[:2]
    x.view(2, 2)[0].mul_(-1)
    assert common_ancestor([before, x]) is None
    torch.testing.assert_close((row + x[:2]).var, 4 * x.var[:2])


def test_chains_hold_no_tensors() -> None:
    x = gaussian(3)
    y = torch.relu((x + 1).view(3, 1))
    gone = weakref.ref(x.mean), weakref.ref(x.var)
    del x
    gc.collect()
    assert gone[0]() is None and gone[1]() is None
    assert y.shape == (3, 1)


def test_chains_have_an_end() -> None:
    x = gaussian(2)
    for _ in range(3 * LONGEST):
        x = x + 1
    assert x.origin is None or x.origin.depth <= LONGEST


def test_values_without_a_common_source_have_no_ancestor() -> None:
    x, y = gaussian(2), gaussian(2)
    assert common_ancestor([x * 2, y * 2]) is None
    assert common_ancestor([torch.relu(x + 1), x.view(2, 1)]) is x.origin


def test_a_sum_starts_a_new_chain() -> None:
    x = gaussian(2, 2)
    total: Tensor = x.sum(0)  # type: ignore[assignment]
    assert common_ancestor([x, total]) is None  # type: ignore[list-item]
