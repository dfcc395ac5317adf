"""Elementwise code in the order of memory."""

from __future__ import annotations

import torch

from mnvi.moments.memory_order import has_channels_last, in_memory_order
from mnvi.moments.tracing import for_compiler


def test_channels_that_lie_last_come_last_for_the_compiler_alone() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(1, 3, 1, 1)
    seen = []

    def scaled(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        seen.append(tuple(x.shape))
        return (x * weight,)

    with for_compiler():
        (moved,) = in_memory_order(scaled, x, weight)
        in_memory_order(scaled, x.contiguous(), weight)
    (plain,) = in_memory_order(scaled, x, weight)
    assert seen == [(2, 20, 3), (2, 3, 4, 5), (2, 3, 4, 5)]
    assert torch.equal(moved, plain)
    assert has_channels_last(moved)


def test_one_channel_has_no_order() -> None:
    assert not has_channels_last(torch.zeros(2, 1, 4, 4))
    assert not has_channels_last(torch.zeros(2, 3))
