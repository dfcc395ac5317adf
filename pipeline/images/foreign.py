"""Images from elsewhere, brought to the form that a network knows from its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.data.augmentation import AUGMENTATIONS, GREY, Batch
from pipeline.images import job as jobs
from pipeline.images.batches import Transform
from pipeline.params import Cell


def transform(cell: Cell, own: Tensor) -> Transform:
    """Of images from elsewhere, for evaluation; ``own`` is one of the cell's images as they are stored."""
    evaluation = jobs.transform(cell, training=False)
    cropped = AUGMENTATIONS[cell.experiment.augmentation or "none"].crop is not None
    return lambda batch, generator: evaluation(fitted(batch, own, cropped), generator)


def fitted(batch: Batch, own: Tensor, cropped: bool) -> Batch:
    """The batch as if it had been stored with the network's own images; one that is like them stays as it is.

    Args:
        own: one of the network's own images, uint8 [c, h, w].
        cropped: whether a crop makes one size of them later: then only the smaller sides have to agree.
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
    """With the smaller side of the target, or just large enough to cover it; the aspect ratio is kept."""
    sides = image.shape[1:]
    scale = min(target) / min(sides) if cropped else max(t / side for t, side in zip(target, sides, strict=True))
    size = [round(side * scale) for side in sides]
    if size == list(sides):
        return image
    smooth = functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    return smooth.round().clamp(0, 255).byte()
