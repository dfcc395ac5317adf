"""The last two states of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline import files, storage
from pipeline.errors import StudyError
from pipeline.images.checkpoints import Checkpoints


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for epoch, step in ((0, 5), (0, 10), (1, 0), (1, 5)):
        checkpoints.save({"epoch": epoch, "step": step}, epoch, step)
    assert [path.name for path in checkpoints.paths()] == ["checkpoint-00001-0000005.pt", "checkpoint-00001-0000000.pt"]
    assert checkpoints.load() == {"epoch": 1, "step": 5}


@pytest.mark.parametrize("content", (b"", b"not a checkpoint", b"PK\x03\x04 cut"))
def test_one_that_cannot_be_read_makes_way_and_is_kept_under_a_name_that_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"epoch": 1}, 1, 0)
    broken = checkpoints.save({"epoch": 2}, 2, 0)
    broken.write_bytes(content)
    state = checkpoints.load()
    assert state is not None and state["epoch"] == 1
    said = capfd.readouterr().err
    assert str(broken) in said and f"unreadable-{broken.name}" in said
    assert (tmp_path / f"unreadable-{broken.name}").read_bytes() == content


def test_all_broken_means_from_the_start(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"epoch": 1}, 1, 0).write_bytes(b"")
    assert checkpoints.load() is None


def test_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-00001-0000000.pt"
    torch.save([1, 2], path)
    with pytest.raises(StudyError, match="not a checkpoint"):
        Checkpoints(tmp_path).read(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match=r"file/checkpoint.*cannot be written"):
        Checkpoints(tmp_path / "file").save({"epoch": 1}, 1, 0)


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of states that can be renamed away; whoever waits for it finds it again."""
    share = tmp_path / "share"
    share.mkdir()

    def back(seconds: float) -> None:
        (tmp_path / "away").rename(share)

    monkeypatch.setattr(storage.time, "sleep", back)
    return share


def test_a_state_waits_for_storage_that_is_gone(share: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = Checkpoints(share / "seed-0", share)
    checkpoints.save({"epoch": 1}, 1, 0)
    share.rename(share.with_name("away"))
    checkpoints.save({"epoch": 2}, 2, 0)
    assert f"{share}: is gone" in capsys.readouterr().err
    assert [path.name for path in checkpoints.paths()] == ["checkpoint-00002-0000000.pt", "checkpoint-00001-0000000.pt"]


def test_a_training_does_not_begin_anew_while_storage_is_gone(share: Path) -> None:
    checkpoints = Checkpoints(share / "seed-0", share)
    checkpoints.save({"epoch": 1}, 1, 0)
    share.rename(share.with_name("away"))
    assert checkpoints.load() == {"epoch": 1}


def test_a_state_is_not_damaged_because_storage_went_while_it_was_read(
    share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, read, goes = Checkpoints(share / "seed-0", share), files.read_tensors, iter([True])
    checkpoints.save({"epoch": 1}, 1, 0)

    def interrupted(path: Path, made_by: str) -> object:
        if next(goes, False):
            share.rename(share.with_name("away"))
        return read(path, made_by)

    monkeypatch.setattr(files, "read_tensors", interrupted)
    assert checkpoints.load() == {"epoch": 1}
    assert [path.name for path in (share / "seed-0").iterdir()] == ["checkpoint-00001-0000000.pt"]


def test_the_half_of_one_that_a_lost_node_left_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, left = Checkpoints(tmp_path), list[Path]()
    checkpoints.save({"epoch": 1}, 1, 0)

    def interrupted(path: Path, content: bytes) -> None:
        left.append(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files.socket, "gethostname", lambda: "lost-node")
        patch.setattr(Path, "write_bytes", interrupted)
        checkpoints.save({"epoch": 1}, 1, 1000)
    left[0].touch()  # which a node that is lost does not delete
    state = checkpoints.load()
    assert state is not None and state["epoch"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00001-0000000.pt"]
