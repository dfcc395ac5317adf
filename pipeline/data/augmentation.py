"""From stored bytes to a network's input: random changes of whole batches of tensors, then normalisation.

Every image of a batch has its own random numbers. All of them come from the caller's generator, so the same generator
state gives the same batch. Photographs change one by one, each with its own generator, before they form a batch.
Colours change in a fixed order: brightness, contrast, saturation, hue, gamma.

Shapes: b images, c channels, h × w pixels; colours are floats in [0, 1] before normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pipeline.errors import StudyError
from pipeline.registry.images import normalisations

T = TypeVar("T")

Batch = Tensor | Sequence[Tensor]
"""What `ImageSet.take` returns: uint8 [b, c, h, w], or a list of uint8 [c, h, w] of different sizes."""

GREY = (0.2989, 0.587, 0.114)
CROP = 224  # of ImageNet's photographs


@dataclass(frozen=True)
class Augmentation:
    """How far training images may change; zero leaves a property as it is."""

    rotation: float = 0.0  # degrees, to either side
    translation: float = 0.0  # pixels, in either direction
    scale: float = 0.0  # a factor in 1 ± scale
    padding: int = 0  # black pixels around the image, before a crop of its own size
    crop: int | None = None  # pixels; from the centre in evaluation
    flip: bool = False  # left to right, every second image
    colour: float = 0.0  # brightness, contrast and saturation: a factor in 1 ± colour
    hue: float = 0.0  # turns of the colour circle, in either direction
    gamma: float = 0.0  # an exponent in 1 ± gamma

    @property
    def keeps_bytes(self) -> bool:
        """Whether it crops and flips alone."""
        return self == Augmentation(crop=self.crop, flip=self.flip)


AUGMENTATIONS = {
    "none": Augmentation(),
    "cifar-paper": Augmentation(rotation=5.0, translation=4.0, scale=0.1, colour=0.2, gamma=0.1),
    "cifar-release": Augmentation(rotation=15.0, padding=4, flip=True, colour=0.2, hue=0.1, gamma=0.1),
    "imagenet-paper": Augmentation(crop=CROP),
    "imagenet-release": Augmentation(crop=CROP, flip=True),
}


def transform(name: str, normalisation: str, training: bool) -> Callable[[Batch, Generator], Tensor]:
    """Returns a function that turns a stored batch and a generator into float32 [b, c, h, w]."""
    how, normalise = augmentation(name), normaliser(normalisation)

    def apply(batch: Batch, generator: Generator) -> Tensor:
        images = _pixels(batch, how.crop, generator if training else None)
        if not training:
            return normalise(images)
        return normalise(_colours(_geometry(images.float() / 255, how, generator), how, generator))

    return apply


def augmentation(name: str) -> Augmentation:
    return _known("augmentation", name, AUGMENTATIONS)


def normaliser(name: str) -> Callable[[Tensor], Tensor]:
    """Returns a function that turns bytes, or colours in [0, 1], into float32 with the set's mean and deviation."""
    mean, std = _known("normalisation", name, normalisations())

    def normalise(images: Tensor) -> Tensor:
        if images.shape[1] != len(mean):
            raise StudyError(f"normalisation: {name} is for {len(mean)} channels, not {images.shape[1]}")
        centre, width = (torch.tensor(values, device=images.device).view(1, -1, 1, 1) for values in (mean, std))
        # In place: allocating a large batch on a CPU takes longer than computing it.
        shifted = images.float().div_(255).sub_(centre) if images.dtype == torch.uint8 else images - centre
        return shifted.div_(width)

    return normalise


def changed(photo: Tensor, how: Augmentation, generator: Generator) -> Tensor:
    """A photograph, uint8 [c, h, w], changed for training.

    Crops and flips leave bytes, a quarter of what has to be moved; rotations and colours return floats in [0, 1].
    """
    if how.crop is not None:
        photo = _crop(photo, how.crop, generator)
    if how.keeps_bytes:
        flipped = how.flip and bool(_uniform(photo[None], 1.0, generator) < 0)
        return photo.flip(-1) if flipped else photo
    return _colours(_geometry(photo[None].float() / 255, how, generator), how, generator)[0]


def as_asked(name: str, batch: Batch) -> Tensor:
    """Stored images as evaluation sees them, before normalisation: uint8 [b, c, h, w]."""
    return _pixels(batch, augmentation(name).crop, None)


def in_pixels(normalisation: str) -> dict[str, list[float]]:
    """Mean and deviation of each channel, on the scale of stored bytes."""
    mean, std = _known("normalisation", normalisation, normalisations())
    return {"mean": [255 * value for value in mean], "std": [255 * value for value in std]}


def _known(key: str, name: str, table: dict[str, T]) -> T:
    if name not in table:
        raise StudyError(f"{key}: {name!r} is unknown; expected one of {', '.join(table)}")
    return table[name]


def _pixels(batch: Batch, crop: int | None, generator: Generator | None) -> Tensor:
    """uint8 [b, c, h, w], cropped at random if there is a generator, else from the centre."""
    if crop is not None:
        return torch.stack([_crop(image, crop, generator) for image in batch])
    return batch if isinstance(batch, Tensor) else stacked(batch)


def stacked(images: Sequence[Tensor]) -> Tensor:
    """Images of one size as a batch."""
    if len({tuple(image.shape) for image in images}) > 1:
        raise StudyError("augmentation: images of different sizes need a crop, such as that of imagenet-paper")
    return torch.stack(list(images))


def _crop(image: Tensor, size: int, generator: Generator | None) -> Tensor:
    spare = [side - size for side in image.shape[-2:]]
    if min(spare) < 0:
        raise StudyError(
            f"augmentation: crops of {size} × {size} from an image of {image.shape[-2]} × {image.shape[-1]} pixels; "
            f"prepare the data with datasets.<name>.size of at least {size}"
        )
    if generator is None:
        top, left = (round(pixels / 2) for pixels in spare)
    else:
        top, left = (int(torch.randint(pixels + 1, (), generator=generator)) for pixels in spare)
    return image[:, top : top + size, left : left + size]


def _geometry(images: Tensor, how: Augmentation, generator: Generator) -> Tensor:
    if how.rotation or how.translation or how.scale:
        angle = _uniform(images, how.rotation, generator)
        shift = torch.stack([_uniform(images, how.translation, generator) for _ in range(2)], dim=1)
        images = affine(images, angle, shift, 1 + _uniform(images, how.scale, generator))
    if how.padding:
        offsets = torch.randint(2 * how.padding + 1, (2, len(images)), generator=generator).to(images.device)
        images = crop_padded(images, how.padding, offsets[0], offsets[1])
    if how.flip:
        flipped = _uniform(images, 1.0, generator) < 0
        images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)
    return images


def _colours(images: Tensor, how: Augmentation, generator: Generator) -> Tensor:
    if how.colour:
        for change in (brightness, contrast, saturation):
            images = change(images, 1 + _uniform(images, how.colour, generator))
    if how.hue:
        images = hue(images, _uniform(images, how.hue, generator))
    if how.gamma:
        images = gamma(images, 1 + _uniform(images, how.gamma, generator))
    return images


def _uniform(images: Tensor, bound: float, generator: Generator) -> Tensor:
    """A number in ± bound for every image, drawn on the CPU: the same on every device."""
    return (bound * (2 * torch.rand(len(images), generator=generator) - 1)).to(images.device)


def affine(images: Tensor, angle: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Rotates about the centre by ``angle`` [b] degrees, clockwise on the screen, enlarges by ``scale`` [b], then moves
    by ``shift`` [b, 2] pixels to the right and down. Interpolation is bilinear; pixels from outside are black.
    """
    height, width = images.shape[-2:]
    radians = angle * (math.pi / 180)
    cos, sin = radians.cos() / scale, radians.sin() / scale
    x, y = shift.unbind(1)
    # grid_sample asks where a pixel comes from, in units of half the image: the inverse, rescaled by the aspect ratio.
    rows = (
        (cos, sin * (height / width), -(cos * x + sin * y) * (2 / width)),
        (-sin * (width / height), cos, (sin * x - cos * y) * (2 / height)),
    )
    inverse = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)  # [b, 2, 3]
    grid = functional.affine_grid(inverse, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def crop_padded(images: Tensor, padding: int, top: Tensor, left: Tensor) -> Tensor:
    """Adds a black border and crops back to the original size at rows ``top`` [b] and columns ``left`` [b]."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (padding,) * 4).permute(0, 2, 3, 1)  # [b, h, w, c]
    image = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    row = top.view(-1, 1, 1) + torch.arange(height, device=images.device).view(1, -1, 1)
    column = left.view(-1, 1, 1) + torch.arange(width, device=images.device).view(1, 1, -1)
    return padded[image, row, column].permute(0, 3, 1, 2)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, torch.zeros_like(images), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images), factor)


def gamma(images: Tensor, exponent: Tensor) -> Tensor:
    return images.pow(exponent.view(-1, 1, 1, 1))


def hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turns the colour circle, keeping HSV's saturation and value."""
    value, largest = images.max(dim=1)
    chroma = value - images.min(dim=1).values  # [b, h, w]
    red, green, blue = images.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    sixths = torch.stack([(green - blue) / safe, (blue - red) / safe + 2, (red - green) / safe + 4], dim=1)
    angle = sixths.gather(1, largest.unsqueeze(1)).squeeze(1) + 6 * turn.view(-1, 1, 1)
    # A channel is the value less the chroma times a trapezium of the angle, which starts at 5, 3, 1 sixths.
    starts = torch.tensor([5.0, 3.0, 1.0], device=images.device).view(1, 3, 1, 1)
    place = (starts + angle.unsqueeze(1)) % 6
    share = torch.minimum(place, 4 - place).clamp(0, 1)
    return value.unsqueeze(1) - chroma.unsqueeze(1) * share


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    weights = torch.tensor(GREY, device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """``factor`` [b] times the image plus (1 − ``factor``) times the other one, clamped to [0, 1]."""
    share = factor.view(-1, 1, 1, 1)
    return (share * images + (1 - share) * other).clamp(0, 1)
