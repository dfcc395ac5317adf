"""Images for comparisons with sampled weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def images(side: int) -> Tensor:
    """Images with structure on two scales."""
    generator = torch.Generator().manual_seed(0)
    coarse = F.interpolate(torch.randn(32, 3, 8, 8, generator=generator), size=side, mode="bilinear")
    return coarse + 0.3 * torch.randn(32, 3, side, side, generator=generator)


def digits(side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's digits, shuffled: images and labels of 1,300 for training and of the 497 others."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = F.interpolate(torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1, size=side, mode="bilinear")
    y = torch.tensor(found.target, dtype=torch.long)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1300], y[:1300], x[1300:], y[1300:]
