"""Damaged images, to see how uncertainty grows as images get worse: eight kinds of damage, each in five severities.

These are definitions of this project. Public benchmarks of corrupted images use others, so figures do not compare
with theirs. Lengths are in pixels of an image whose smaller side has 32; larger images are blurred in proportion.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Generator, Tensor
from torch.nn import functional

from pipeline.data.imagesets import ImageSet
from pipeline.images.randomness import generator

SIDE = 32.0  # of the image that lengths refer to
WIDTHS = 3  # standard deviations of a Gaussian blur to each side


@dataclass(frozen=True)
class Damage:
    """One kind of damage.

    Args:
        apply: changes colours in [0, 1], float32 [c, h, w], with a strength and random numbers; the result is clamped.
        strengths: one for each severity, from 1 up.
        meaning: what the strength is.
    """

    apply: Callable[[Tensor, float, Generator], Tensor]
    strengths: tuple[float, ...]
    meaning: str


def _gaussian_noise(image: Tensor, deviation: float, numbers: Generator) -> Tensor:
    return image + deviation * torch.randn(image.shape, generator=numbers)


def _impulse_noise(image: Tensor, share: float, numbers: Generator) -> Tensor:
    drawn = torch.rand(image.shape[1:], generator=numbers)
    return image.where(drawn >= share, (drawn < share / 2).float())


def _gaussian_blur(image: Tensor, deviation: float, numbers: Generator) -> Tensor:
    deviation = deviation * min(image.shape[1:]) / SIDE
    reach = max(1, round(WIDTHS * deviation))
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / deviation) ** 2)
    weights = weights / weights.sum()
    return _filtered(_filtered(image, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))


def _motion_blur(image: Tensor, length: float, numbers: Generator) -> Tensor:
    pixels = max(2, round(length * min(image.shape[1:]) / SIDE))
    return _filtered(image, torch.full((1, 1, 1, pixels), 1 / pixels))


def _filtered(image: Tensor, weights: Tensor) -> Tensor:
    """Each channel filtered; pixels beyond the border are those of the border."""
    height, width = weights.shape[2:]
    sides = ((width - 1) // 2, width // 2, (height - 1) // 2, height // 2)
    return functional.conv2d(functional.pad(image[:, None], sides, mode="replicate"), weights)[:, 0]


def _brightness(image: Tensor, added: float, numbers: Generator) -> Tensor:
    return image + added


def _contrast(image: Tensor, factor: float, numbers: Generator) -> Tensor:
    mean = image.mean()
    return mean + factor * (image - mean)


def _pixelate(image: Tensor, share: float, numbers: Generator) -> Tensor:
    size = [max(1, round(share * side)) for side in image.shape[1:]]
    small = functional.interpolate(image[None], size, mode="area")
    return functional.interpolate(small, image.shape[1:], mode="nearest-exact")[0]


def _jpeg(image: Tensor, quality: float, numbers: Generator) -> Tensor:
    pixels = (255 * image).round().byte().permute(1, 2, 0).numpy()
    with io.BytesIO() as file:
        Image.fromarray(pixels.squeeze(-1) if len(image) == 1 else pixels).save(file, "JPEG", quality=int(quality))
        read = np.array(Image.open(file))
    return torch.from_numpy(read.reshape(pixels.shape)).permute(2, 0, 1).float() / 255


KINDS = {
    "gaussian noise": Damage(_gaussian_noise, (0.04, 0.06, 0.08, 0.12, 0.18), "standard deviation of the colours"),
    "impulse noise": Damage(_impulse_noise, (0.01, 0.03, 0.06, 0.10, 0.16), "share of pixels made black or white"),
    "gaussian blur": Damage(_gaussian_blur, (0.4, 0.6, 0.8, 1.1, 1.5), "standard deviation in pixels"),
    "motion blur": Damage(_motion_blur, (3, 5, 7, 9, 11), "length of a horizontal movement in pixels"),
    "brightness": Damage(_brightness, (0.1, 0.2, 0.3, 0.4, 0.5), "added to each colour"),
    "contrast": Damage(_contrast, (0.75, 0.5, 0.4, 0.3, 0.15), "factor of the distance from the image's mean"),
    "pixelate": Damage(_pixelate, (0.5, 0.4, 0.3, 0.25, 0.2), "share of rows and columns that is kept"),
    "JPEG": Damage(_jpeg, (80, 60, 40, 25, 12), "quality of the encoder"),
}
SEVERITIES = range(1, 6)


class DamagedImages(ImageSet):
    """A part of a prepared image set, damaged. An image's random numbers depend on its row alone, not on its batch."""

    def __init__(self, folder: Path, part: str, kind: str, severity: int) -> None:
        super().__init__(folder, part)
        self.kind, self.severity = kind, severity

    def __reduce__(self) -> tuple[object, ...]:
        return DamagedImages, (self.folder, self.part, self.kind, self.severity)

    def take(self, rows: Tensor) -> Tensor | list[Tensor]:
        images = [
            damaged(image, self.kind, self.severity, generator("damage", self.kind, self.severity, row))
            for image, row in zip(super().take(rows), rows.tolist(), strict=True)
        ]
        return images if self.ragged else torch.stack(images)


def damaged(image: Tensor, kind: str, severity: int, numbers: Generator) -> Tensor:
    """An image with one kind of damage.

    Args:
        image: uint8 [c, h, w]; the result is like it.
        severity: 1 to 5.
    """
    damage = KINDS[kind]
    changed = damage.apply(image.float() / 255, damage.strengths[severity - 1], numbers)
    return changed.clamp(0, 1).mul(255).round().byte()
