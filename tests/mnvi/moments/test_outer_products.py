"""Several outer products where one misses; what one does is tested in test_factored.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mnvi.layers.convolution import geometry
from mnvi.moments import factored
from mnvi.moments.affine import Affine
from mnvi.moments.outer_products import LARGEST_MISS, MOST_TERMS, factors, few_terms, miss, total

LAYERS: dict[str, Callable[[int], nn.Module]] = {  # by a number of terms; four inputs to each output for each term
    "linear": lambda terms: nn.Linear(4 * terms, 32),
    "conv2d": lambda terms: nn.Conv2d(2 * terms, 32, (1, 2)),
    "grouped": lambda terms: nn.Conv2d(4 * terms, 64, (1, 2), groups=2),
    "transposed": lambda terms: nn.ConvTranspose2d(2 * terms, 32, (1, 2)),
    "transposed, grouped": lambda terms: nn.ConvTranspose2d(8 * terms, 32, 1, groups=2),
}


def mixture(kind: str, terms: int) -> tuple[Affine, Tensor]:
    """Outputs and inputs fall into so many kinds that do not meet: as many outer products."""
    torch.manual_seed(0)
    layer = LAYERS[kind](terms)
    shape = layer.weight.shape
    ends = [torch.arange(size) % terms for size in shape[:2]]
    meets = (ends[0][:, None] == ends[1]).double()
    scale = (torch.rand(shape[0], 1).double() + 0.5) * (torch.rand(1, shape[1]).double() + 0.5)
    return geometry(layer), (meets * scale).view(*shape[:2], *(1,) * (len(shape) - 2)).expand(shape).clone()


@pytest.mark.parametrize("terms", [2, 4])
@pytest.mark.parametrize("kind", LAYERS)
def test_as_many_terms_as_a_matrix_is_made_of(kind: str, terms: int) -> None:
    affine, matrix = mixture(kind, terms)
    found = few_terms(affine, matrix)
    assert len(found) <= terms and miss(affine, matrix) > LARGEST_MISS >= miss(affine, matrix, found)
    assert all((part >= 0).all() for term in found for part in term)


@pytest.mark.parametrize("kind", LAYERS)
def test_terms_keep_every_row_sum(kind: str) -> None:
    affine, matrix = mixture(kind, 3)
    matrix = matrix + 0.01
    found = few_terms(affine, matrix)
    assert len(found) > 1
    sums = torch.stack([term.rows for term in found]).sum(0)
    torch.testing.assert_close(sums, factors(affine, matrix).rows)
    torch.testing.assert_close(factors(affine, total(affine, found)).rows, sums)


@pytest.mark.parametrize("kind", LAYERS)
def test_terms_applied_one_by_one_are_their_sum_applied_at_once(kind: str) -> None:
    affine, matrix = mixture(kind, 3)
    found = few_terms(affine, matrix)
    channels = len(matrix) if affine.transposed else matrix.shape[1] * affine.groups
    u = torch.rand((2, channels) if kind == "linear" else (2, channels, 5, 5)).double()
    assert len(found) > 1
    torch.testing.assert_close(factored.of_terms(affine, u, found), affine(u, total(affine, found)))


def test_a_matrix_that_no_few_terms_describe_gets_the_most_and_still_misses() -> None:
    matrix = torch.eye(32).repeat(1, 2)
    found = few_terms(geometry(nn.Linear(64, 32)), matrix)
    assert len(found) == MOST_TERMS and miss(geometry(nn.Linear(64, 32)), matrix, found) > LARGEST_MISS
