"""Converts images of other data sets to the form of a network's own images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.data.augmentation import AUGMENTATIONS, GREY, Batch
from pipeline.images import job as jobs
from pipeline.images.batches import Transform
from pipeline.params import Cell


def transform(cell: Cell, own: Tensor) -> Transform:
    """The evaluation transform for foreign images; ``own`` is one of the cell's stored images."""
    evaluation = jobs.transform(cell, training=False)
    cropped = AUGMENTATIONS[cell.experiment.augmentation or "none"].crop is not None
    return lambda batch, generator: evaluation(fitted(batch, own, cropped), generator)


def fitted(batch: Batch, own: Tensor, cropped: bool) -> Batch:
    """The batch in the form of the network's own stored images; a batch that already has it stays unchanged.

    Args:
        own: one of the network's own images, uint8 [c, h, w].
        cropped: whether a later crop gives all images one size; then only the smaller sides must agree.
    """
    if isinstance(batch, Tensor) and batch.shape[1:] == own.shape:
        return batch
    return [_fitted(image, own, cropped) for image in batch]


def _fitted(image: Tensor, own: Tensor, cropped: bool) -> Tensor:
    channels, *target = own.shape
    image = _resized(_coloured(image, channels), target, cropped)
    if cropped:
        return image
    top, left = ((side - wanted) // 2 for side, wanted in zip(image.shape[1:], target, strict=True))
    return image[:, top : top + target[0], left : left + target[1]]


def _coloured(image: Tensor, channels: int) -> Tensor:
    if len(image) == channels:
        return image
    if channels > 1:
        return image.expand(channels, -1, -1)
    weights = torch.tensor(GREY, device=image.device).view(3, 1, 1)
    return (image * weights).sum(0, keepdim=True).round().byte()


def _resized(image: Tensor, target: list[int], cropped: bool) -> Tensor:
    """Resizes to the target's smaller side, or just large enough to cover the target; keeps the aspect ratio."""
    sides = image.shape[1:]
    scale = min(target) / min(sides) if cropped else max(t / side for t, side in zip(target, sides, strict=True))
    size = [round(side * scale) for side in sides]
    if size == list(sides):
        return image
    smooth = functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    return smooth.round().clamp(0, 255).byte()
