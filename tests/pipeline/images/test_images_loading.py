"""Photographs in loader processes: the same for any number of them, resumed, and after one dies."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from image_study import make_cell, make_job
from photos import entry, prepared_photos

from pipeline import blobs
from pipeline.data.augmentation import AUGMENTATIONS, Augmentation
from pipeline.data.imagesets import ImageSet, load_images
from pipeline.errors import StudyError
from pipeline.images import loop
from pipeline.images.batches import Batches, Part
from pipeline.images.group import Group
from pipeline.images.loading import Loader, Photos


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(AUGMENTATIONS, "small-crop", Augmentation(crop=48, flip=True))


@pytest.fixture
def images() -> ImageSet:
    return load_images(prepared_photos(), "train")


def loader(
    images: ImageSet, processes: int = 0, rank: int = 0, size: int = 1, name: str = "small-crop", **more: int
) -> Loader:
    settings = {"size": 12, "seed": 3, "examples": len(images), "steps": 5, **more}
    batches = Batches(images, lambda *_: pytest.fail("the loader's own work"), Group(rank, size), **settings)
    return Loader(batches, name, "imagenet", processes)


def taken(source: Loader, steps: list[tuple[int, int]]) -> list[list[Part]]:
    with source:
        return [source.parts(*step) for step in steps]


def assert_same(found: list[list[Part]], expected: list[list[Part]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [part.weight for part in one] == [part.weight for part in other]
        assert torch.equal(torch.cat([p.images for p in one]), torch.cat([p.images for p in other]))
        assert torch.equal(torch.cat([p.labels for p in one]), torch.cat([p.labels for p in other]))


STEPS = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_number_of_processes_does_not_matter(images: ImageSet, processes: int) -> None:
    expected = taken(loader(images), STEPS)
    assert [part.images.shape for part in expected[0]] == [(12, 3, 48, 48)]
    assert_same(taken(loader(images, processes), STEPS), expected)


def test_the_number_of_workers_does_not_matter(images: ImageSet) -> None:
    alone = taken(loader(images), STEPS)
    shares = [taken(loader(images, rank=rank, size=3, accumulate=2), STEPS) for rank in range(3)]
    for step, whole in enumerate(alone):
        parts = [part for share in shares for part in share[step] if part.weight]
        assert torch.equal(torch.cat([part.images for part in parts]), whole[0].images)
        assert torch.equal(torch.cat([part.labels for part in parts]), whole[0].labels)


@pytest.mark.parametrize("start", [2, 5])
def test_it_goes_on_inside_an_epoch(images: ImageSet, start: int) -> None:
    assert_same(taken(loader(images), STEPS[start:]), taken(loader(images), STEPS)[start:])


def test_epochs_show_an_image_differently_and_labels_stay_its_own(images: ImageSet) -> None:
    photos = Photos(images, AUGMENTATIONS["small-crop"], 0)
    shown = [photos.photo(epoch, 5) for epoch in range(4)]
    assert len({image.numpy().tobytes() for image in shown}) > 1
    assert torch.equal(photos.photo(2, 5), shown[2])
    ((part,),) = taken(loader(images), [(0, 0)])
    batches = loader(images).batches
    assert torch.equal(part.labels, images.labels[batches.rows(0, 0)])


def test_crops_travel_as_bytes_and_colours_as_floats(images: ImageSet) -> None:
    for colour, dtype in ((0.0, torch.uint8), (0.2, torch.float32)):
        batch = Photos(images, Augmentation(crop=48, flip=True, colour=colour), 0)[0, [1, 2, 3]]
        assert isinstance(batch, torch.Tensor) and batch.dtype == dtype and batch.shape == (3, 3, 48, 48)


def test_torchs_own_generator_is_left_alone(images: ImageSet) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    taken(loader(images), STEPS)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_process_that_dies_is_replaced(images: ImageSet, capfd: pytest.CaptureFixture[str]) -> None:
    expected = taken(loader(images), STEPS)
    with loader(images, processes=2) as source:
        found = [source.parts(*step) for step in STEPS[:2]]
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGKILL)
        found += [source.parts(*step) for step in STEPS[2:]]
    assert_same(found, expected)
    assert "a loader process died" in capfd.readouterr().err


def test_a_damaged_shard_is_named_by_the_step_that_needs_it(images: ImageSet) -> None:
    for path in images.folder.glob("train-*.shard"):
        path.write_bytes(bytes(path.stat().st_size))
    with loader(images, processes=1) as source, pytest.raises(StudyError, match=r"^/.*train-0000\d\.shard: cannot be"):
        source.parts(0, 0)


def test_images_of_different_sizes_without_a_crop_are_refused(images: ImageSet) -> None:
    with loader(images, name="none") as source, pytest.raises(StudyError, match="different sizes need a crop"):
        source.parts(0, 0)


def test_shards_are_fetched_ahead_of_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNVI_NODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pipeline.images.loading.SHARDS_AHEAD", 2)
    here = prepared_photos()
    there = load_images(blobs.publish({".": here}, tmp_path / "storage").here(), "train")
    source = loader(there)
    asked: list[int] = []
    monkeypatch.setattr(type(there.shards), "fetch", lambda self, number: asked.append(number))
    assert_same(taken(source, STEPS[:5]), taken(loader(load_images(here, "train")), STEPS[:5]))
    needed = (source.batches.order(0) // 8).tolist()
    assert asked == list(dict.fromkeys(needed)), "not in the order in which they are needed, or not once"


def test_training_stopped_inside_an_epoch_ends_as_if_it_had_not_been() -> None:
    prepared_photos(size=28, widths=(28,), each=8, per_shard=5)
    data = {"photos": entry(28)}
    recipe = {"data": "photos", "ood": [], "normalisation": "imagenet", "epochs": 2, "milestones": []}
    study = {"data": ["photos"], "cells": {"lenet": {"experiment": "lenet-mnist", "data": "photos", "method": "mnvi"}}}
    cell = make_cell(experiment=recipe, datasets=data, study=study)
    whole = loop.run(make_job(cell, "undisturbed"), Group())
    job = dataclasses.replace(make_job(cell, "stopped"), checkpoint_steps=1)
    answers = iter([False] * 4 + [True])
    assert not loop.run(job, Group(), should_stop=lambda: next(answers)).finished
    found = loop.run(job, Group())
    assert [epoch["nll"] for epoch in found.history] == [epoch["nll"] for epoch in whole.history]
    for name, value in whole.best_weights.items():
        assert torch.equal(found.best_weights[name], value), name
