"""Shards that a node fetches when it reads them, from a folder and from S3."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from photos import prepared_photos

from pipeline import blobs, files, storage
from pipeline.data.imagesets import ImageSet, load_images
from pipeline.errors import StudyError
from pipeline.storage import Anywhere


@pytest.fixture(autouse=True)
def on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MNVI_NODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "PAUSES", (0.01, 0.01))


@pytest.fixture(params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Anywhere:
    if request.param == "folder":
        return tmp_path / "storage"
    return storage.at(f"{request.getfixturevalue('s3')}/{tmp_path.name}")


def published(root: Anywhere) -> tuple[ImageSet, ImageSet]:
    """Training images where they were prepared, and as a node reads them."""
    folder = prepared_photos()
    there = blobs.publish({".": folder}, root).here()
    return load_images(folder, "train"), load_images(there, "train")


def copies() -> list[Path]:
    return [path for path in (blobs.node_cache() / "large").glob("*") if not path.suffix]


def copy_of(images: ImageSet, name: str) -> Path:
    return blobs.node_cache() / "large" / blobs.checksums(images.folder)[name]


def assert_same(found: ImageSet, expected: ImageSet) -> None:
    rows = torch.arange(len(expected))
    assert torch.equal(found.labels, expected.labels)
    for one, other in zip(found.take(rows), expected.take(rows), strict=True):
        assert torch.equal(one, other)


def test_a_shard_is_fetched_when_it_is_read(root: Anywhere) -> None:
    here, there = published(root)
    assert not list(there.folder.glob("*.shard")) and not copies()
    assert torch.equal(there.take(torch.tensor([9]))[0], here.take(torch.tensor([9]))[0])
    assert copies() == [copy_of(there, "train-00001.shard")]
    assert_same(there, here)
    assert len(copies()) == 7  # those of the training images


def test_publishing_hashes_no_shard_and_needs_none_that_storage_has(tmp_path: Path, monkeypatch) -> None:
    here, there = published(tmp_path / "storage")
    hashed: list[str] = []
    sha256 = files.sha256
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path.name) or sha256(path))
    again = blobs.publish({".": there.folder}, tmp_path / "storage")
    assert again.here() == there.folder, "the folder that a job reads is published as another one"
    assert hashed and not [name for name in hashed if name.endswith(".shard")]
    (tmp_path / "storage" / "blobs").rename(tmp_path / "gone")
    with pytest.raises(StudyError, match=r"\.shard: is neither here nor in .*storage"):
        blobs.publish({".": there.folder}, tmp_path / "storage")
    assert here.folder != there.folder


def test_a_damaged_copy_is_fetched_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = published(tmp_path / "storage")
    there.shards.fetch(2)
    path = copy_of(there, "train-00002.shard")
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    assert_same(there, here)
    assert "train-00002.shard: the copy on this node cannot be read" in capsys.readouterr().err
    assert path.read_bytes() == content


def test_damage_in_storage_is_named(tmp_path: Path) -> None:
    _, there = published(tmp_path / "storage")
    digest = blobs.checksums(there.folder)["train-00002.shard"]
    (tmp_path / "storage" / "blobs" / digest[:2] / digest).write_bytes(b"something else")
    with pytest.raises(StudyError, match=f"{digest}: was altered or damaged"):
        there.take(torch.tensor([16]))
    assert not copies()


def test_a_folder_may_be_gone_for_a_while(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = published(tmp_path / "storage")
    (tmp_path / "storage").rename(tmp_path / "away")
    pauses = iter([lambda: None, lambda: (tmp_path / "away").rename(tmp_path / "storage")])
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: next(pauses)())
    assert_same(there, here)
    assert capsys.readouterr().err.count("storage/blobs: is gone (No such file or directory); mount the share") == 2


def test_a_folder_that_stays_away_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, there = published(tmp_path / "storage")
    (tmp_path / "storage").rename(tmp_path / "away")
    with pytest.raises(StudyError, match="storage/blobs: is gone"):
        there.take(torch.tensor([16]))
    assert capsys.readouterr().err.count("Trying again") == len(storage.PAUSES)


def test_a_shard_that_storage_lacks_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, there = published(tmp_path / "storage")
    monkeypatch.setattr(storage, "PAUSES", (1e6,))
    digest = blobs.checksums(there.folder)["train-00002.shard"]
    (tmp_path / "storage" / "blobs" / digest[:2] / digest).unlink()
    with pytest.raises(StudyError, match=f"{digest}: is not in storage"):
        there.take(torch.tensor([16]))


def test_copies_take_no_more_room_than_they_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = published(tmp_path / "storage")
    largest = max(path.stat().st_size for path in here.folder.glob("train-*.shard"))
    monkeypatch.setenv("MNVI_NODE_CACHE_GB", str(2.5 * largest / 1e9))
    for _ in range(2):  # what was deleted is fetched again
        for row in range(0, len(here), 4):
            assert torch.equal(there.take(torch.tensor([row]))[0], here.take(torch.tensor([row]))[0])
            assert sum(path.stat().st_size for path in copies()) <= 2.5 * largest
    with pytest.raises(StudyError, match=r"MNVI_NODE_CACHE_GB=.*: an epoch of .* needs .* GB at a time; write"):
        there.shards.check_room(ahead=16)
    monkeypatch.setenv("MNVI_NODE_CACHE_GB", "0.1")
    there.shards.check_room(ahead=16)
    monkeypatch.setenv("MNVI_NODE_CACHE_GB", "much")
    with pytest.raises(StudyError, match="MNVI_NODE_CACHE_GB=much: expected a number of gigabytes"):
        for row in range(0, len(here), 8):
            there.take(torch.tensor([row]))
