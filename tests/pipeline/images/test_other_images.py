"""Out-of-distribution images get the channels and the size of a network's own images, and stay the same otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mnvi._torchvision import torchvision
from pipeline.images.other_images import fitted

resize = torchvision.transforms.functional.resize


def bytes_of(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_images_like_the_networks_own_stay_as_they_are() -> None:
    batch = bytes_of(4, 1, 28, 28)
    assert fitted(batch, batch[0], cropped=False) is batch


def test_grey_in_three_channels_becomes_the_same_grey_in_one() -> None:
    grey = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    (found,) = fitted([grey.expand(3, -1, -1)], grey, cropped=False)
    assert torch.equal(found, grey)


def test_colours_become_grey_by_luminance() -> None:
    primary = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255]], dtype=torch.uint8).view(3, 1, 3)
    (found,) = fitted([primary], primary[:1], cropped=False)
    assert found.flatten().tolist() == [76, 150, 29]  # 0.299, 0.587, 0.114 of 255


def test_grey_is_given_to_every_channel_of_a_network_for_colours() -> None:
    grey = bytes_of(1, 8, 8)
    (found,) = fitted([grey], bytes_of(3, 8, 8), cropped=False)
    assert found.shape == (3, 8, 8) and all(torch.equal(channel, grey[0]) for channel in found)


@pytest.mark.parametrize("sides", ((32, 48), (50, 20), (7, 7), (28, 29)))
def test_every_size_is_made_that_of_the_network_from_the_middle(sides: tuple[int, int]) -> None:
    image = bytes_of(3, *sides)
    (found,) = fitted([image], bytes_of(3, 28, 28), cropped=False)
    whole = resize(image.float(), 28).round()  # the smaller side
    top, left = ((side - 28) // 2 for side in whole.shape[1:])
    assert found.dtype == torch.uint8
    torch.testing.assert_close(found.float(), whole[:, top : top + 28, left : left + 28], atol=1.0, rtol=0.0)


def test_before_a_crop_only_the_smaller_side_is_made_that_of_the_network() -> None:
    images = [bytes_of(3, 32, 48), bytes_of(3, 30, 16)]
    found = fitted(images, bytes_of(3, 32, 40), cropped=True)
    assert found[0] is images[0]
    assert found[1].shape == (3, 60, 32)
