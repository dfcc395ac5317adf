"""The attention of torchvision's Swin transformers, computed by calling its projections.

``ShiftedWindowAttention`` and ``ShiftedWindowAttentionV2`` are subclasses of torchvision's classes of the same name.
They are made on first use, because torchvision is optional.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

_TORCHVISIONS = "torchvision.models.swin_transformer"
_CLASSES = ("ShiftedWindowAttention", "ShiftedWindowAttentionV2")


def is_torchvisions(module: nn.Module) -> bool:
    """Whether a module is of a torchvision class that this file subclasses."""
    return type(module).__module__ == _TORCHVISIONS and type(module).__name__ in _CLASSES


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mnvi._torchvision import torchvision

    original = getattr(torchvision.models.swin_transformer, name)
    made = type(name, (_CallsItsLayers, original), {"__module__": __name__, "__doc__": original.__doc__})
    setattr(sys.modules[__name__], name, made)
    return made


class _CallsItsLayers(nn.Module):
    """Shifted-window attention that calls ``qkv`` and ``proj``.

    In the second version of Swin the keys have no bias: the mean of their bias is subtracted again. With a mean-field
    posterior the variance of that bias stays.
    """

    qkv: Any
    proj: Any
    num_heads: int
    window_size: list[int]
    shift_size: list[int]
    attention_dropout: float
    dropout: float
    get_relative_position_bias: Any

    def forward(self, x: Any) -> Any:  # [batch, height, width, channels]
        _, height, width, _ = x.shape
        rows, columns = self.window_size
        x = nn.functional.pad(x, (0, 0, 0, -width % columns, 0, -height % rows))
        batch, full_height, full_width, channels = x.shape
        shift = [
            0 if window >= length else by
            for window, length, by in zip(self.window_size, (full_height, full_width), self.shift_size, strict=True)
        ]
        if any(shift):
            x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
        grid = full_height // rows, full_width // columns
        x = x.reshape(batch, grid[0], rows, grid[1], columns, channels).permute(0, 1, 3, 2, 4, 5)
        x = self._attended(x.reshape(-1, rows * columns, channels), grid, shift)
        x = x.reshape(batch, *grid, rows, columns, channels).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, full_height, full_width, channels)
        if any(shift):
            x = torch.roll(x, (shift[0], shift[1]), (1, 2))
        return x[:, :height, :width].contiguous()

    def _attended(self, x: Any, grid: tuple[int, int], shift: list[int]) -> Any:  # [batch · windows, tokens, channels]
        logit_scale = getattr(self, "logit_scale", None)
        q, k, v = self.qkv(x).chunk(3, -1)
        if logit_scale is not None and self.qkv.bias is not None:
            k = k - self.qkv.bias.chunk(3)[1]
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        if logit_scale is None:
            q = q * q.shape[-1] ** -0.5
        else:
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        scores = torch.matmul(q, k.transpose(-2, -1))
        if logit_scale is not None:
            scores = scores * logit_scale.clamp(max=_LARGEST_LOGIT_SCALE).exp()
        scores = scores + self.get_relative_position_bias()
        if any(shift):
            mask = self._mask(grid, shift, scores.device).to(scores.dtype)  # [windows, tokens, tokens]
            scores = (scores.unflatten(0, (-1, len(mask))) + mask[:, None]).flatten(0, 1)
        weights = nn.functional.dropout(nn.functional.softmax(scores, -1), self.attention_dropout, self.training)
        out = self.proj(torch.matmul(weights, v).transpose(1, 2).flatten(2))
        return nn.functional.dropout(out, self.dropout, self.training)

    def _mask(self, grid: tuple[int, int], shift: list[int], device: torch.device) -> Tensor:
        """Keeps tokens apart that the cyclic shift brought together from opposite borders."""
        borders = []
        for window, by, windows in zip(self.window_size, shift, grid, strict=True):
            place = torch.arange(window * windows, device=device)
            last = window * windows
            borders.append(
                ((place >= last - window).long() + (place >= last - by).long()).unflatten(0, (windows, window))
            )
        region = 3 * borders[0][:, None, :, None] + borders[1][None, :, None, :]  # [grid..., window...]
        region = region.flatten(2).flatten(0, 1)
        return (region[:, None, :] != region[:, :, None]) * _FORBIDDEN


# torchvision's constants: the largest temperature of cosine attention, and the score that keeps tokens apart.
_LARGEST_LOGIT_SCALE = 4.605170185988092  # log 100
_FORBIDDEN = -100.0
