"""Small networks of three kinds, for comparisons with sampled weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def all_convolutional(num_classes: int = 10) -> nn.Module:
    """Five convolutions, ReLU between them, and the mean over positions."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, num_classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


class SmallUNet(nn.Module):
    """A U-Net of three scales: max-pooling down, transposed convolutions up, joined channels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = _twice(3, width), _twice(width, 2 * width), _twice(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.raise2, self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), _twice(4 * width, 2 * width)
        self.raise1, self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2), _twice(2 * width, width)
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(x)
        coarse = self.down2(self.pool(fine))
        coarse = self.up2(torch.cat([coarse, self.raise2(self.bottom(self.pool(coarse)))], 1))
        out: Tensor = self.head(self.up1(torch.cat([fine, self.raise1(coarse)], 1)))
        return out


def _twice(channels: int, out: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
        nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
    )  # fmt: skip


class SmallViT(nn.Module):
    """A vision transformer of four blocks on patches of four pixels, whose tokens are averaged."""

    def __init__(self, width: int = 64, blocks: int = 4, side: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // 4) ** 2, width))
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        out: Tensor = self.head(torch.mean(self.norm(self.blocks(tokens)), 1))
        return out


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        out: Tensor = x + self.feed(self.norm2(x))
        return out
