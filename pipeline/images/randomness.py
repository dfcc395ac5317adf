"""Seeds derived from the position in training: an interrupted run draws the same numbers as an undisturbed one."""

from __future__ import annotations

import hashlib

import torch


def derived_seed(*parts: int | str) -> int:
    """A seed for a purpose and a position, such as ``derived_seed(seed, "order", epoch)``."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch takes 63 unsigned bits


def generator(*parts: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derived_seed(*parts))
