"""Photographs in shards: their order, and what is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from photos import prepared_photos

from pipeline.data import shards
from pipeline.data.imagesets import load_images
from pipeline.data.shards import Shards
from pipeline.errors import StudyError


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shards:
    """An index of 203 shards of 16 images, whose files are elsewhere."""
    monkeypatch.setattr(shards.large_files, "is_fetched", lambda folder: True)
    monkeypatch.setattr(shards, "WINDOW", 8)
    np.save(tmp_path / "train_places.npy", np.zeros((3240, 3), np.int64))
    return Shards(tmp_path, "train", 16)


def order(many: Shards, seed: int, examples: int = 3240) -> torch.Tensor:
    return many.order(examples, torch.Generator().manual_seed(seed))


def test_an_order_holds_every_row_once_and_follows_from_the_seed(many: Shards) -> None:
    assert order(many, 0).sort().values.tolist() == list(range(3240))
    assert torch.equal(order(many, 0), order(many, 0)) and not torch.equal(order(many, 0), order(many, 1))
    assert order(many, 0, 1001).sort().values.tolist() == list(range(1001))


def test_an_order_needs_only_some_shards_at_a_time(many: Shards) -> None:
    of_position = (order(many, 0) // 16).numpy()
    found, first = np.unique(of_position, return_index=True)
    last = len(of_position) - 1 - np.unique(of_position[::-1], return_index=True)[1]
    open_at = [int(((first <= position) & (position <= last)).sum()) for position in range(0, 3240, 50)]
    assert len(found) == 203
    assert max(open_at) <= 8 + 2  # the window, and shards that begin or end in it


def test_an_order_mixes_the_images_of_a_window(many: Shards) -> None:
    """Neighbours in the order come from one shard no more often than chance makes them: about 1 in 8."""
    of_position = order(many, 0) // 16
    same = (of_position[1:] == of_position[:-1]).double()
    expected, error = 1 / 8, (1 / 8 * 7 / 8 / len(same)) ** 0.5
    assert float(same.mean()) < 1.5 * expected + 4 * error  # the delays of neighbours overlap, at most by half


def test_few_images_get_a_uniform_permutation(many: Shards) -> None:
    assert torch.equal(order(many, 3, 128), torch.randperm(128, generator=torch.Generator().manual_seed(3)))


def test_the_first_training_rows_are_a_sample_of_all_classes() -> None:
    labels = load_images(prepared_photos(), "train").labels
    assert len(labels) == 54 and labels[:16].unique().tolist() == [0, 1, 2]


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    folder = prepared_photos()
    images = load_images(folder, "train")
    path = folder / "train-00001.shard"
    content = bytearray(path.read_bytes())
    content[int(images.shards.places[11][0]) + 50] ^= 1
    path.write_bytes(content)
    images.take(torch.arange(8, 11))
    with pytest.raises(StudyError, match=r"train-00001\.shard: cannot be read \(its image 3 .*prepare photos`"):
        images.take(torch.arange(8, 16))
