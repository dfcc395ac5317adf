"""Storage and what is put into it, in a folder and in S3 as moto's server has it."""

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import boto3
import pytest
from s3_server import s3_server

from pipeline import blobs, storage
from pipeline.errors import StudyError
from pipeline.storage import Anywhere, Remote


@pytest.fixture(params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Anywhere:
    monkeypatch.setenv("MNVI_NODE_CACHE", str(tmp_path / "cache"))
    if request.param == "folder":
        return tmp_path / "storage"
    return storage.at(f"{request.getfixturevalue('s3')}/{tmp_path.name}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "x.bin").write_bytes(os.urandom(1000))
    (folder / "deep" / "y.bin").write_bytes(b"y" * 10)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_published_comes_back_and_is_put_there_once(root: Anywhere, data: Path) -> None:
    published = blobs.publish({".": data}, root)
    assert contents(published.here()) == contents(data)
    names = storage.names(root)
    assert len(names) == 3  # two files and their list
    (data / "copy.bin").write_bytes((data / "x.bin").read_bytes())
    blobs.publish({".": data}, root)
    assert len(storage.names(root)) == 4, "the copy was put there once more"


def test_an_altered_file_is_refused(root: Anywhere, data: Path, tmp_path: Path) -> None:
    published = blobs.publish({".": data}, root)
    digest = published.listed()["deep/y.bin"]
    (tmp_path / "altered").write_bytes(b"z" * 10)
    storage.put(tmp_path / "altered", root / "blobs" / digest[:2] / digest)
    with pytest.raises(StudyError, match=f"{digest}: was altered or damaged.*delete it"):
        published.here()
    assert not (blobs.node_cache() / published.digest).exists(), "a part of it was left in the node's cache"


def test_a_file_that_is_gone_is_named(root: Anywhere, data: Path) -> None:
    published = blobs.publish({".": data}, root)
    digest = published.listed()["x.bin"]
    storage.remove(root / "blobs" / digest[:2] / digest)
    with pytest.raises(StudyError, match=f"{digest}: is not in storage; run the same command again"):
        published.here()


def fetched(published: blobs.Contents) -> int:
    return published.here().stat().st_ino


def test_workers_of_a_node_fetch_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNVI_NODE_CACHE", str(tmp_path / "cache"))
    published = blobs.publish({".": data}, tmp_path / "storage")
    with multiprocessing.get_context("spawn").Pool(3) as workers:
        folders = workers.map(fetched, [published] * 6, chunksize=1)
        assert len(set(folders)) == 1
        shutil.rmtree(tmp_path / "storage")  # what the node has is enough
        assert set(workers.map(fetched, [published] * 3, chunksize=1)) == set(folders)


def test_a_list_that_leads_out_of_its_folder_is_refused(tmp_path: Path, data: Path) -> None:
    published = blobs.publish({"../outside": data / "x.bin"}, tmp_path / "storage")
    with pytest.raises(StudyError, match=r"names \.\./outside, which is outside of its folder"):
        published.write(tmp_path / "target")


def test_a_file_in_s3_whose_name_leads_out_of_its_folder_is_refused(s3: str) -> None:
    folder = Remote(f"{s3}/leading-out")
    boto3.client("s3").put_object(Bucket="study", Key="leading-out/../../outside.json", Body=b"{}")
    with pytest.raises(StudyError, match=r"leading-out: names \.\./\.\./outside\.json, which is outside of its folder"):
        storage.names(folder)


def unsafe_link(folder: Path) -> None:
    own = folder.with_name("own")
    own.mkdir(mode=0o700)
    folder.symlink_to(own)


UNSAFE: dict[str, Callable[[Path], None]] = {
    "a link": unsafe_link,
    "a link to nothing": lambda folder: folder.symlink_to("nothing"),
    "a file": Path.touch,
    "open to others": lambda folder: (folder.mkdir(), folder.chmod(0o755))[1],
    "another's": lambda folder: (folder.mkdir(mode=0o700), os.chown(folder, 12345, -1))[1],
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_a_node_cache_that_others_could_have_made_or_may_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "another's" and os.getuid() != 0:
        pytest.skip("needs root, to give a folder away")
    monkeypatch.delenv("MNVI_NODE_CACHE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"mnvi-{os.getuid()}"
    UNSAFE[kind](folder)
    with pytest.raises(StudyError, match=rf"{folder}: is not a folder that belongs to you.*set MNVI_NODE_CACHE"):
        blobs.node_cache()


def test_files_in_s3_have_a_paths_manners(s3: str) -> None:
    folder = Remote(f"{s3}/manners")
    assert not folder.exists() and storage.names(folder) == []
    for name in ("trial-b/trial.json", "trial-a/trial.json", "trial-a/deep/trial.json"):
        storage.write_json(folder / name, name)
    assert [str(found) for found in storage.found(folder, "trial-*/trial.json")] == [
        f"{s3}/manners/trial-a/trial.json",
        f"{s3}/manners/trial-b/trial.json",
    ]
    assert storage.read_json(folder / "trial-a/trial.json", "a test") == "trial-a/trial.json"
    with pytest.raises(StudyError, match=rf"^{s3}/manners/none.json: no such file; it is made by `a test`"):
        storage.read_json(folder / "none.json", "a test")
    (folder / "none.json").unlink(missing_ok=True)
    storage.remove(folder / "trial-b/trial.json")
    assert len(storage.names(folder)) == 2
    for _ in range(2):  # the second time there is nothing
        storage.remove(folder)
        assert storage.names(folder) == []


def test_folders_and_files_move_within_a_bucket(s3: str) -> None:
    folder = Remote(f"{s3}/moving")
    for name in ("a/one.json", "a/deep/two.json"):
        storage.write_json(folder / name, name)
    storage.write_json(folder / "b/one.json", "of a move that was cut short")
    storage.move(folder / "a", folder / "b")
    assert [str(name) for name in storage.names(folder)] == ["b/deep/two.json", "b/one.json"]
    assert storage.read_json(folder / "b/one.json", "a test") == "a/one.json"
    storage.move(folder / "b/one.json", folder / "c.json")
    assert [str(name) for name in storage.names(folder)] == ["b/deep/two.json", "c.json"]


def test_a_bucket_that_is_not_there_is_named(s3: str) -> None:
    with pytest.raises(
        StudyError, match=r"s3://no-such-bucket/x: cannot be written .*check the bucket of MNVI_STORAGE"
    ):
        storage.write_json(Remote("s3://no-such-bucket/x"), 1)


@pytest.mark.slow
def test_a_server_that_is_gone_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as servers:
        with s3_server() as (address, variables):
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            place = storage.at(f"{address}/a.json")
            storage.write_json(place, 1)
        port = int(variables["AWS_ENDPOINT_URL"].rpartition(":")[2])
        back = iter([lambda: None, lambda: servers.enter_context(s3_server(port))])
        monkeypatch.setattr(storage, "time", Mock(sleep=lambda seconds: next(back)()))
        storage.write_json(place, 2)
        assert storage.read_json(place, "a test") == 2
    assert capsys.readouterr().err.count("a.json: cannot be written") == 2
    storage._system.cache_clear()
