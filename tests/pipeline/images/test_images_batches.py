"""Who gets which images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from image_study import write_images

from pipeline.data.augmentation import AUGMENTATIONS, Batch, transform
from pipeline.data.imagesets import ImageSet, load_images
from pipeline.images.batches import Ahead, Batches
from pipeline.images.group import Group


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    write_images(tmp_path / "mnist", train=43)
    return load_images(tmp_path / "mnist", "train")


def batches(images: ImageSet, rank: int = 0, size: int = 1, accumulate: int = 1) -> Batches:
    def noisy(pixels: Batch, generator: torch.Generator) -> torch.Tensor:
        assert isinstance(pixels, torch.Tensor)
        return pixels.float() + torch.rand(1, generator=generator)

    return Batches(
        images, noisy, Group(rank, size), size=16, seed=0, examples=len(images), steps=3, accumulate=accumulate
    )


def test_an_epoch_holds_every_image_once(images: ImageSet) -> None:
    rows = torch.cat([batches(images).rows(1, step) for step in range(3)])
    assert rows.sort().values.tolist() == list(range(43))


def test_epochs_differ_in_order(images: ImageSet) -> None:
    assert not torch.equal(batches(images).rows(0, 0), batches(images).rows(1, 0))


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("accumulate", (1, 3))
def test_shares_of_all_workers_make_up_the_global_batch(images: ImageSet, step: int, accumulate: int) -> None:
    parts = [part for rank in range(2) for part in batches(images, rank, 2, accumulate).parts(0, step)]
    whole = images.labels[batches(images).rows(0, step)]
    assert torch.equal(torch.cat([part.labels for part in parts]), whole)
    assert sum(part.weight for part in parts) / 2 == pytest.approx(1.0)


@pytest.mark.parametrize("step", range(3))
def test_weighted_means_of_unequal_shares_average_to_the_mean(images: ImageSet, step: int) -> None:
    def mean(rank: int) -> float:
        parts = batches(images, rank, 3, accumulate=2).parts(0, step)
        return sum(part.weight * float(part.labels.double().mean()) for part in parts)

    whole = images.labels[batches(images).rows(0, step)].double().mean()
    assert sum(mean(rank) for rank in range(3)) / 3 == pytest.approx(float(whole))


def test_a_worker_without_a_share_takes_part_but_does_not_count(images: ImageSet) -> None:
    few = Batches(
        images,
        lambda pixels, _: torch.stack(list(pixels)).float(),
        Group(2, 3),
        size=2,
        seed=0,
        examples=4,
        steps=2,
        accumulate=1,
    )
    (part,) = few.parts(0, 1)
    assert len(part.images) == 1 and part.weight == 0


def test_augmentation_repeats_and_differs_between_steps_and_workers(images: ImageSet) -> None:
    def drawn(rank: int, step: int) -> float:
        part = batches(images, rank, 2).parts(0, step)[0]
        return float(part.images.frac().flatten()[0])

    assert drawn(0, 0) == drawn(0, 0)
    assert len({drawn(0, 0), drawn(0, 1), drawn(1, 0)}) == 3


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_stored_bytes_are_changed_on_the_device_that_trains(images: ImageSet, augmentation: str) -> None:
    device = torch.device("meta")  # shapes without numbers, but a device that is not the CPU
    change = transform(augmentation, "imagenet", training=True)
    sent: list[tuple[torch.device, torch.dtype]] = []

    def noted(pixels: Batch, generator: torch.Generator) -> torch.Tensor:
        assert isinstance(pixels, torch.Tensor)
        sent.append((pixels.device, pixels.dtype))
        return change(pixels.new_empty(len(pixels), 3, 256, 256), generator)

    (part,) = Batches(images, noted, Group(device=device), size=16, seed=0, examples=16, steps=1).parts(0, 0)
    assert sent == [(device, torch.uint8)]
    assert part.images.device == part.labels.device == device and part.images.shape[:2] == (16, 3)


def test_images_prepared_ahead_are_those_of_the_step(images: ImageSet) -> None:
    plain = batches(images)
    with Ahead(batches(images)) as ahead:
        for epoch, step in ((0, 0), (0, 1), (0, 1), (2, 0), (2, 1), (3, 0)):  # in order, again, and elsewhere
            for found, expected in zip(ahead.parts(epoch, step), plain.parts(epoch, step), strict=True):
                assert torch.equal(found.images, expected.images) and torch.equal(found.labels, expected.labels)
    assert ahead.waited > 0


def test_an_error_while_images_are_prepared_reaches_the_step(images: ImageSet) -> None:
    failing = batches(images)

    def broken(*_: object) -> torch.Tensor:
        raise OSError("the disk is gone")

    failing.transform = broken
    with Ahead(failing) as ahead, pytest.raises(OSError, match="the disk is gone"):
        ahead.parts(0, 0)
