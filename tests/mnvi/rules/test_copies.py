"""Sums over copies of one random entry warn and name the line; copies that nothing adds stay silent."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rule_checks import gaussian
from torch import nn

import mnvi

ROWS = torch.tensor([0, 0, 3, 2])
WEIGHT = torch.ones(3, 12, dtype=torch.float64)
LAYER = mnvi.convert(nn.Linear(12, 3), mnvi.MultiplicativeNoise(1.0)).double()
CONVOLUTION = mnvi.convert(nn.Conv1d(4, 4, 3, groups=2), mnvi.MultiplicativeNoise(1.0)).double()
POINTWISE = mnvi.convert(nn.Conv1d(4, 2, 1), mnvi.MultiplicativeNoise(1.0)).double()

ADDED: dict[str, Callable[[Any], Any]] = {
    "expand, sum": lambda x: x[:, :1].expand(4, 6).sum(1),
    "expand_as, mean": lambda x: torch.mean(x[:, :1].expand_as(x)),
    "broadcast_to, cumsum": lambda x: x[:, :1].broadcast_to(4, 6).cumsum(1),
    "repeat, layer": lambda x: LAYER(x.repeat(1, 2)),
    "tile, linear": lambda x: F.linear(x.tile(1, 2), WEIGHT),
    "repeat_interleave, matmul": lambda x: torch.matmul(x.repeat_interleave(2, 1), WEIGHT.T),
    "indexing, matmul from the left": lambda x: torch.ones(4, dtype=torch.float64) @ x[ROWS],
    "index_select, sum": lambda x: x.index_select(0, ROWS).sum(0),
    "two index tensors, sum": lambda x: x[ROWS, ROWS].sum(),
    "gather, sum": lambda x: x.gather(0, ROWS[:, None].expand(4, 6)).sum(0),
    "take_along_dim, sum": lambda x: x.take_along_dim(ROWS[:, None].expand(4, 6), 0).sum(0),
    "take_along_dim that broadcasts, sum": lambda x: x[:, :1].take_along_dim(ROWS[:, None].expand(4, 6), 0).sum(1),
    "take_along_dim of flat entries": lambda x: torch.take_along_dim(x, ROWS).sum(),
    "cat with a function, layer": lambda x: LAYER(torch.cat([x, torch.relu(x)], -1)),
    "cat with the negative, einsum": lambda x: torch.einsum("bi,oi->bo", torch.cat((x, -x), dim=1), WEIGHT),
    "cat with another value between": lambda x: torch.cat([x, gaussian(4, 2), 2 * x], 1).sum(1),
    "cat of a cat": lambda x: torch.cat([torch.cat([x, x.sigmoid()], 1), gaussian(4, 6)], 1).sum(1),
    "cat of copies": lambda x: torch.cat([x[:, :1].expand(4, 3), torch.ones(4, 3)], 1).sum(1),
    "stack with itself, mean": lambda x: torch.mean(torch.stack([x, x]), 0),
    "hstack, inner": lambda x: torch.inner(torch.hstack([x, x * x]), WEIGHT),
    "moved afterwards": lambda x: x[:, :1].expand(4, 6).T.relu().sum(0),
    "spread by a tensor": lambda x: F.linear((x[..., None] - torch.arange(12.0).double()).square(), WEIGHT),
    "grouped convolution": lambda x: CONVOLUTION(x[:2].repeat_interleave(2, 0)[None]),
    "convolution over positions": lambda x: CONVOLUTION(x[None, :, :1].expand(1, 4, 6)),
    "plain convolution": lambda x: F.conv1d(x[None].repeat(1, 2, 1), torch.ones(1, 8, 1, dtype=torch.float64)),
    "average pooling": lambda x: F.avg_pool1d(x[None, :, :1].expand(1, 4, 6), 2),
    "attention over copied tokens": lambda x: F.scaled_dot_product_attention(
        torch.ones(1, 2, 6).double(), torch.ones(1, 4, 6).double(), x[:1].expand(4, 6)[None]
    ),
}
SILENT: dict[str, Callable[[Any], Any]] = {
    "copies along other dimensions": lambda x: x[:, None].expand(4, 5, 6).sum(-1),
    "copied rows": lambda x: F.linear(torch.relu(x[ROWS]).repeat(1, 1), torch.ones(2, 6).double()),
    "take_along_dim of rows, sum": lambda x: x.take_along_dim(ROWS[:, None], 0).sum(1),
    "cat along the batch": lambda x: torch.cat([x, torch.relu(x)]).sum(1),
    "cat of different parts": lambda x: torch.cat([-x[:, 3:], x[:, :3]], -1).sum(-1),
    "cat with a layer's result": lambda x: torch.cat([x, LAYER(torch.cat([x, gaussian(4, 6)], 1))], 1).sum(1),
    "a table of positions": lambda x: (x + torch.ones(1, 6)).sum(1),
    "grouped convolution of its copies": lambda x: CONVOLUTION(x[:2].repeat(2, 1)[None]),
    "one by one over positions": lambda x: POINTWISE(x[None, :, :1].expand(1, 4, 6)),
    "transposed convolution": lambda x: F.conv_transpose1d(
        x[None, :, :1].expand(1, 4, 6), torch.ones(4, 1, 2).double(), stride=2
    ),
    "expanded to the same shape": lambda x: x.expand(4, 6).sum(),
    "a mask": lambda x: x[torch.arange(4) > 1].sum(),
    "shared keys": lambda x: torch.matmul(x[None].expand(3, 4, 6), WEIGHT[:, :6].T),
    "squeeze and excitation": lambda x: torch.mean(x * torch.sigmoid(torch.mean(x, 1, keepdim=True)), 1),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_sum_over_copies_warns_once_and_names_the_line(name: str) -> None:
    x = gaussian(4, 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            ADDED[name](x)
    (only,) = caught
    assert only.category is mnvi.DependenceWarning and only.filename == __file__
    assert "it adds copies of the same random value" in str(only.message)


@pytest.mark.parametrize("name", SILENT)
def test_copies_that_nothing_adds_stay_silent(name: str) -> None:
    SILENT[name](gaussian(4, 6))  # warnings are errors


def test_the_answer_does_not_depend_on_another_index_of_the_same_shape() -> None:
    x = gaussian(2000, 2)
    rows = torch.arange(2000)
    x[rows, :].sum()
    rows[5] = 6
    with pytest.warns(mnvi.DependenceWarning):
        x[rows, :].sum()


def test_a_compiled_sum_over_copies_gives_the_result_of_eager_mode() -> None:
    x = gaussian(4, 6)
    compiled = torch.compile(ADDED["stack with itself, mean"], fullgraph=True, backend="eager")(x)
    with pytest.warns(mnvi.DependenceWarning):
        expected = ADDED["stack with itself, mean"](x)
    torch.testing.assert_close(compiled.var, expected.var)
