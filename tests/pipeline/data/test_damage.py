"""Every kind of damage does what its strength says, more with every severity, and the same for every batch."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from image_study import write_images
from torch.nn import functional

from pipeline.data.damage import KINDS, SEVERITIES, DamagedImages, damaged
from pipeline.images.randomness import generator


def picture(channels: int = 3, size: tuple[int, int] = (32, 32)) -> torch.Tensor:
    """Spots of all sizes, the larger the stronger, as in photographs."""
    numbers = torch.Generator().manual_seed(0)
    spots = [torch.randn(1, channels, side, side, generator=numbers) for side in (2, 4, 8, 16, 32)]
    layers = [functional.interpolate(one, size, mode="bicubic") * 2.0**-i for i, one in enumerate(spots)]
    return (128 + 30 * torch.cat(layers).sum(0)).clamp(0, 255).byte()


def distance(kind: str, severity: int) -> float:
    change = damaged(picture(), kind, severity, generator("test")).float() - picture().float()
    return float(change.square().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_each_severity_changes_more(kind: str) -> None:
    found = [distance(kind, severity) for severity in SEVERITIES]
    assert found[0] > 0 and found == sorted(found), found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("like", [picture(1, (28, 28)), picture(3, (40, 57))])
def test_shape_and_bytes_stay(kind: str, like: torch.Tensor) -> None:
    result = damaged(like, kind, 5, generator("test"))
    assert result.shape == like.shape and result.dtype == torch.uint8


def test_noise_and_impulses_have_the_stated_size() -> None:
    grey = torch.full((3, 128, 128), 128, dtype=torch.uint8)
    noise = damaged(grey, "gaussian noise", 2, generator("test")).float() / 255
    assert float(noise.std()) == pytest.approx(0.06, rel=0.02)
    hit = damaged(grey, "impulse noise", 5, generator("test"))
    assert float((hit[0] != 128).float().mean()) == pytest.approx(0.16, abs=0.01)
    assert set(hit.unique().tolist()) == {0, 128, 255} and bool((hit[0] == hit[1]).all())


def test_blurs_keep_the_mean_and_spread_a_point_as_far_as_they_say() -> None:
    point = torch.zeros(1, 32, 32, dtype=torch.uint8)
    point[0, 16, 16] = 255
    blurred = damaged(point, "gaussian blur", 5, generator("test")).double()[0]
    share = blurred / blurred.sum()
    deviation = (share.sum(0) * (torch.arange(32) - 16.0).square()).sum().sqrt()
    assert float(deviation) == pytest.approx(1.5, abs=0.1)
    moved = damaged(point, "motion blur", 2, generator("test"))
    assert int((moved > 0).sum()) == 5 and int((moved[0, 16] > 0).sum()) == 5


def test_contrast_and_brightness_are_the_stated_arithmetic() -> None:
    image = picture()
    mean = image.double().mean() / 255
    expected = (255 * (mean + 0.3 * (image.double() / 255 - mean))).round()
    assert int((damaged(image, "contrast", 4, generator("test")).double() - expected).abs().max()) <= 1
    assert int((damaged(image, "brightness", 1, generator("test")).double() - (image.double() + 25.5)).abs().max()) <= 1


def test_an_image_is_damaged_alike_in_every_batch_and_after_a_pickle(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist")
    images = DamagedImages(tmp_path / "mnist", "test", "gaussian noise", 3)
    whole = images.take(torch.arange(8))
    alone = pickle.loads(pickle.dumps(images)).take(torch.tensor([5, 2]))
    assert torch.equal(torch.as_tensor(np.stack(alone)), torch.as_tensor(np.stack(whole))[[5, 2]])
    assert torch.equal(images.labels, DamagedImages(tmp_path / "mnist", "test", "JPEG", 1).labels)
