"""Batched augmentation: equal to torchvision's functions image by image, spread as stated, repeatable."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mnvi._torchvision import torchvision
from pipeline.data import augmentation
from pipeline.data.augmentation import AUGMENTATIONS, transform
from pipeline.errors import StudyError
from pipeline.registry.images import normalisations

reference = torchvision.transforms.functional
BILINEAR = torchvision.transforms.InterpolationMode.BILINEAR


def photos(count: int = 6, height: int = 32, width: int = 32) -> Tensor:
    return torch.rand(count, 3, height, width)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("batched", "single", "values"),
    [
        (augmentation.brightness, reference.adjust_brightness, [0.8, 0.9, 1.0, 1.1, 1.2, 1.7]),
        (augmentation.contrast, reference.adjust_contrast, [0.8, 0.9, 1.0, 1.1, 1.2, 1.7]),
        (augmentation.saturation, reference.adjust_saturation, [0.8, 0.9, 1.0, 1.1, 1.2, 1.7]),
        (augmentation.hue, reference.adjust_hue, [-0.5, -0.1, 0.0, 0.03, 0.1, 0.4]),
        (augmentation.gamma, reference.adjust_gamma, [0.9, 0.95, 1.0, 1.05, 1.1, 2.0]),
    ],
    ids=["brightness", "contrast", "saturation", "hue", "gamma"],
)
def test_colours_change_as_torchvision_changes_them(batched, single, values) -> None:
    images = photos()
    images[0, :, :8] = 0.0  # black, white and grey have no hue
    images[1, :, :8] = 1.0
    images[2, :, :8] = 0.5
    expected = torch.stack([single(image, value) for image, value in zip(images, values, strict=True)])
    torch.testing.assert_close(batched(images, torch.tensor(values)), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_affine_maps_as_torchvision_does(size: tuple[int, int]) -> None:
    images = photos(4, *size)
    angles, scales = [0.0, 5.0, -15.0, 90.0], [1.0, 0.9, 1.1, 1.0]
    shifts = [[3, 0], [0, -4], [2, 1], [0, 0]]
    expected = torch.stack(
        [
            reference.affine(image, angle, shift, scale, [0.0, 0.0], interpolation=BILINEAR)
            for image, angle, shift, scale in zip(images, angles, shifts, scales, strict=True)
        ]
    )
    actual = augmentation.affine(images, torch.tensor(angles), torch.tensor(shifts).float(), torch.tensor(scales))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_padded_crops_are_torchvisions() -> None:
    images = photos(3)
    top, left = torch.tensor([0, 4, 8]), torch.tensor([8, 4, 1])
    expected = torch.stack(
        [
            reference.crop(reference.pad(image, [4]), int(row), int(column), 32, 32)
            for image, row, column in zip(images, top, left, strict=True)
        ]
    )
    assert torch.equal(augmentation.crop_padded(images, 4, top, left), expected)


def moments_of_a_dot(images: Tensor) -> Tensor:
    """Centre of mass of each image, [b, 2] as (x, y) from the image's centre."""
    weights = images[:, 0] / images[:, 0].sum(dim=(1, 2), keepdim=True)
    places = torch.arange(images.shape[-1]) - (images.shape[-1] - 1) / 2
    return torch.stack([(weights.sum(1) * places).sum(1), (weights.sum(2) * places).sum(1)], dim=1)


def dot(count: int, x: int) -> Tensor:
    """A spot x pixels beside the centre, smooth enough for interpolation to keep its centre of mass: [b, 3, 33, 33]."""
    places = torch.arange(33) - 16.0
    spot = torch.exp(-((places - x) ** 2 + places[:, None] ** 2) / (2 * 1.5**2))
    return spot.expand(count, 3, 33, 33)


def assert_uniform(values: Tensor, low: float, high: float) -> None:
    """Mean and variance of the uniform distribution, to five standard errors, and nothing outside."""
    count, width = len(values), high - low
    assert low - 0.02 * width <= values.min() and values.max() <= high + 0.02 * width
    assert abs(values.mean() - (low + high) / 2) < 5 * width / math.sqrt(12 * count)
    # The variance of a sample variance of the uniform distribution is width⁴ / 180 / count.
    assert abs(values.var() - width**2 / 12) < 5 * width**2 / math.sqrt(180 * count)


def test_the_papers_rotation_scale_and_translation_are_uniform_in_their_ranges() -> None:
    """Two spots, moved by the same random numbers, give the map: their mean the shift, their difference the rest."""
    count = 2000
    right, left = (
        moments_of_a_dot(augmentation._geometry(dot(count, x), AUGMENTATIONS["cifar-paper"], generator()))
        for x in (6, -6)
    )
    shift, arm = (right + left) / 2, (right - left) / 2
    assert_uniform(shift[:, 0], -4, 4)
    assert_uniform(shift[:, 1], -4, 4)
    assert_uniform(torch.rad2deg(torch.atan2(arm[:, 1], arm[:, 0])), -5, 5)
    assert_uniform(arm.norm(dim=1) / 6, 0.9, 1.1)
    pairs = torch.corrcoef(torch.stack([shift[:, 0], shift[:, 1], arm[:, 1], arm.norm(dim=1)]))
    assert (pairs - torch.eye(4)).abs().max() < 5 / math.sqrt(count)


def test_the_releases_crop_takes_every_offset_and_flips_half() -> None:
    release = AUGMENTATIONS["cifar-release"]
    count = 4000
    images = dot(count, 8)
    places = moments_of_a_dot(augmentation._geometry(images, replace(release, rotation=0.0), generator()))
    flipped = places[:, 0] < 0
    assert abs(flipped.float().mean() - 0.5) < 5 * 0.5 / math.sqrt(count)
    shifts = torch.where(flipped, -places[:, 0], places[:, 0]) - 8
    for values in (shifts, places[:, 1]):
        offsets, counts = values.round().unique(return_counts=True)
        assert offsets.tolist() == list(range(-4, 5))
        assert (counts / count - 1 / 9).abs().max() < 5 * math.sqrt(8 / 81 / count)


@pytest.mark.parametrize("name", ["cifar-paper", "cifar-release"])
def test_brightness_and_gamma_of_flat_grey_fill_their_ranges(name: str) -> None:
    """Flat grey has no contrast, saturation or hue to change: what comes out is (0.5 · brightness) ^ gamma."""
    grey = torch.full((4000, 3, 2, 2), 0.5)
    seen = augmentation._colours(grey, AUGMENTATIONS[name], generator())[:, 0, 0, 0]
    low, high = 0.4**1.1, 0.6**0.9
    assert low - 1e-6 <= seen.min() < low + 0.01 and high - 0.01 < seen.max() <= high + 1e-6


def test_the_releases_rotation_is_uniform_up_to_15_degrees() -> None:
    still = replace(AUGMENTATIONS["cifar-release"], padding=0, flip=False)
    right, left = (moments_of_a_dot(augmentation._geometry(dot(2000, x), still, generator())) for x in (8, -8))
    arm = right - left
    assert_uniform(torch.rad2deg(torch.atan2(arm[:, 1], arm[:, 0])), -15, 15)


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_the_generator_decides_everything(name: str) -> None:
    size = 256 if "imagenet" in name else 32
    images = torch.randint(256, (4, 3, size, size), dtype=torch.uint8)
    apply = transform(name, "imagenet", training=True)
    torch.manual_seed(1)
    one = apply(images, generator(3))
    torch.manual_seed(2)
    assert torch.equal(one, apply(images, generator(3)))
    assert torch.equal(one, apply(images, generator(4))) == (name == "none")
    assert one.dtype == torch.float32 and one.isfinite().all()


@pytest.mark.parametrize("name", ["none", "cifar-paper", "cifar-release"])
def test_evaluation_only_normalises(name: str) -> None:
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    mean, std = (list(values) for values in normalisations()["cifar10"])
    expected = torch.stack([reference.normalize(image / 255, mean, std) for image in images])
    torch.testing.assert_close(transform(name, "cifar10", training=False)(images, generator()), expected)


def test_photographs_of_any_size_are_cropped_from_the_centre_in_evaluation() -> None:
    images = [torch.randint(256, (3, *size), dtype=torch.uint8) for size in ((256, 341), (300, 256), (224, 224))]
    mean, std = (list(values) for values in normalisations()["imagenet"])
    expected = torch.stack(
        [reference.normalize(reference.center_crop(image, [224, 224]) / 255, mean, std) for image in images]
    )
    actual = transform("imagenet-release", "imagenet", training=False)(images, generator())
    torch.testing.assert_close(actual, expected)


def test_crops_in_training_reach_every_corner() -> None:
    image = torch.arange(226 * 225).reshape(1, 226, 225).expand(3, -1, -1)
    corners = {int(augmentation._crop(image, 224, draw)[0, 0, 0]) for draw in [generator()] for _ in range(200)}
    assert corners == {row * 225 + column for row in range(3) for column in range(2)}


def test_impossible_requests_are_named() -> None:
    with pytest.raises(StudyError, match="'cifar' is unknown; expected one of none, cifar-paper"):
        transform("cifar", "cifar10", training=True)
    with pytest.raises(StudyError, match="normalisation: 'x' is unknown"):
        transform("none", "x", training=True)
    with pytest.raises(StudyError, match="224 × 224 from an image of 100 × 300"):
        transform("imagenet-paper", "imagenet", training=True)([torch.zeros(3, 100, 300)], generator())
    with pytest.raises(StudyError, match="cifar10 is for 3 channels, not 1"):
        transform("none", "cifar10", training=False)(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), generator())
    with pytest.raises(StudyError, match="different sizes"):
        transform("none", "cifar10", training=False)([torch.zeros(3, 8, 8), torch.zeros(3, 8, 9)], generator())


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_a_photograph_alone_changes_as_in_a_batch(name: str, seed: int) -> None:
    photo = torch.randint(256, (3, 230, 240), dtype=torch.uint8, generator=generator(seed))
    alone = augmentation.changed(photo, AUGMENTATIONS[name], generator(seed))
    assert alone.dtype == (torch.uint8 if name in ("none", "imagenet-paper", "imagenet-release") else torch.float32)
    expected = transform(name, "imagenet", training=True)([photo], generator(seed))
    assert torch.equal(augmentation.normaliser("imagenet")(alone[None]), expected)
