"""The winners of a max-pooling against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mnvi.moments.winners import tiles, winners, winning_places


@pytest.mark.parametrize("last", [False, True])
def test_winners_and_their_gradients_are_those_of_torchs_pooling(last: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 9, dtype=torch.float64, requires_grad=True)
    expected = F.max_pool2d(x, (2, 3))
    grad = torch.randn_like(expected)
    values, first = (x.movedim(1, -1), 1) if last else (x, 2)
    place = winning_places(tiles(values.detach(), (2, 3), first))
    found = winners(values, place, (2, 3), first).unflatten(first, (2, 3))  # positions are one dimension
    found = found.movedim(-1, 1) if last else found
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(out, x, grad)[0] for out in (found, expected)))


def test_nan_wins_and_the_first_of_equals() -> None:
    nan = float("nan")
    place = winning_places([torch.tensor([1.0, nan, 1.0]), torch.tensor([1.0, 2.0, nan])])
    assert place.tolist() == [0, 0, 1]
