"""Image sets: official files from any source, folders of photographs, and what the stages read of them."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import pickle
import resource
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mnvi._torchvision import torchvision
from pipeline import files
from pipeline.data import image_sources, shard_format, shard_writing, splits
from pipeline.data.folders import find_folder
from pipeline.data.image_arrays import find_images
from pipeline.data.imagesets import load_images
from pipeline.data.sources import MIRROR, MissingData
from pipeline.errors import StudyError
from pipeline.params import Dataset
from pipeline.prepare import prepare
from pipeline.registry.images import IMAGES, KnownImages, Official

NOWHERE = "http://127.0.0.1:9"


def official(contents: dict[str, bytes], **keys: Any) -> KnownImages:
    described = tuple(
        Official(name, len(content), hashlib.md5(content).hexdigest()) for name, content in contents.items()
    )
    return KnownImages(name="tiny", files=described, home=NOWHERE, classes=tuple("0123456789"), **keys)


def idx(images: np.ndarray, labels: np.ndarray, prefix: str) -> dict[str, bytes]:
    count = len(labels).to_bytes(4, "big")
    header = b"\0\0\x08\x03" + count + (28).to_bytes(4, "big") * 2
    return {
        f"{prefix}-images-idx3-ubyte": header + images.tobytes(),
        f"{prefix}-labels-idx1-ubyte": b"\0\0\x08\x01" + count + labels.tobytes(),
    }


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.RandomState(seed)
    return draw.randint(256, size=(count, 28, 28)).astype(np.uint8), draw.randint(10, size=count).astype(np.uint8)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with a set named tiny in MNIST's format, which is made known; gives the folder of its files."""
    contents = idx(*digits(40, 0), "train") | idx(*digits(10, 1), "t10k")
    folder = tmp_path / "mirror" / "tiny"
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setitem(IMAGES, "tiny", official(contents, form="idx", mirror="tiny"))
    monkeypatch.setenv(MIRROR, str(tmp_path / "mirror"))
    monkeypatch.chdir(tmp_path)
    return folder


TINY = Dataset(name="tiny", kind="images", validation=8)


def test_idx_files_become_parts(tiny: Path) -> None:
    prepare(TINY, "stop")
    train, validation, test = (load_images("data/tiny", part) for part in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (32, 8, 10)
    images, labels = digits(40, 0)
    rows = np.load("data/tiny/validation_index.npy")
    taken = validation.take(torch.tensor([3, 0]))
    assert isinstance(taken, torch.Tensor) and taken.dtype == torch.uint8
    np.testing.assert_array_equal(taken[:, 0], images[rows[[3, 0]]])
    np.testing.assert_array_equal(validation.labels, labels[rows])
    np.testing.assert_array_equal(test.take(torch.arange(10))[:, 0], digits(10, 1)[0])  # type: ignore[call-overload]
    assert train.labels.dtype == torch.int64 and train.classes == list("0123456789") and not train.ragged


def test_training_and_validation_share_no_image_and_never_change(tiny: Path) -> None:
    one, two = find_images(TINY), find_images(TINY)
    train, validation = one.arrays["train_index"], one.arrays["validation_index"]
    assert sorted([*train, *validation]) == list(range(40))
    np.testing.assert_array_equal(validation, two.arrays["validation_index"])


def test_an_image_set_travels_as_its_place(tiny: Path) -> None:
    prepare(TINY, "stop")
    test = load_images("data/tiny", "test")
    packed = pickle.dumps(test)
    assert len(packed) < 500
    assert torch.equal(pickle.loads(packed).take(torch.arange(3)), test.take(torch.arange(3)))


def test_an_impossible_validation_part(tiny: Path) -> None:
    with pytest.raises(StudyError, match=r"tiny\.validation: 40 of 40"):
        find_images(Dataset(name="tiny", kind="images", validation=40))
    with pytest.raises(StudyError, match=r"tiny\.validation: -1 of 40"):
        splits.validation(40, -1, "tiny")


def test_an_altered_file_of_the_mirror_is_named_with_both_checksums(tiny: Path) -> None:
    path = tiny / "t10k-labels-idx1-ubyte.gz"
    altered = gzip.decompress(path.read_bytes())[:-1] + b"\x0b"
    path.write_bytes(gzip.compress(altered))
    found, expected = hashlib.md5(altered).hexdigest(), IMAGES["tiny"].files[3].md5
    with pytest.raises(StudyError, match=rf"t10k-labels-idx1-ubyte\.gz: .*{found} .*{expected}"):
        find_images(TINY)


def test_a_file_of_the_mirror_that_is_cut_off_is_named(tiny: Path) -> None:
    path = tiny / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:1000])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(StudyError, match=rf"train-images-idx3-ubyte\.gz: cannot be unpacked .*{sha256}.*MD5") as caught:
        find_images(TINY)
    assert not isinstance(caught.value, MissingData)


def test_without_mirror_and_internet_it_is_missing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIRROR)
    with pytest.raises(MissingData, match=r"(?s)is not set.*127\.0\.0\.1:9: .*refused.*tiny/train-images"):
        find_images(TINY)


def test_a_set_for_testing_only(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IMAGES, "ood", official(idx(*digits(10, 1), "t10k"), form="idx", mirror="tiny"))
    prepare(Dataset(name="ood", kind="images"), "stop")
    assert len(load_images("data/ood", "test")) == 10
    with pytest.raises(StudyError, match="has no train part"):
        load_images("data/ood", "train")


def cifar(count: int, label_bytes: int, seed: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    draw = np.random.RandomState(seed)
    records = draw.randint(256, size=(count, label_bytes + 3072)).astype(np.uint8)
    records[:, :label_bytes] %= 10
    return records.tobytes(), records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1]


def test_cifar_100_comes_out_of_an_archive_with_its_fine_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"train": cifar(6, 2, 0), "test": cifar(4, 2, 1)}
    contents = {f"cifar-100-binary/{part}.bin": data for part, (data, _, _) in parts.items()}
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    monkeypatch.setitem(IMAGES, "c", official(contents, form="cifar100", mirror="c.tar.gz"))
    monkeypatch.setenv(MIRROR, str(tmp_path))
    arrays = find_images(Dataset(name="c", kind="images", validation=2)).arrays
    for part, (_, images, labels) in parts.items():
        np.testing.assert_array_equal(arrays[f"{part}_images"], images)
        np.testing.assert_array_equal(arrays[f"{part}_labels"], labels)


def test_cifar_10_is_rebuilt_from_pictures(tmp_path: Path) -> None:
    """Pictures as the package has them, an image per row, from which the official files come out byte by byte."""
    names = [file.name for file in IMAGES["cifar10"].files]
    batches = {name: cifar(4, 1, seed) for seed, name in enumerate(names)}
    members = {}
    for name, (_, images, _) in batches.items():
        picture = io.BytesIO()
        Image.fromarray(images.transpose(0, 2, 3, 1).reshape(4, 1024, 3)).save(picture, "PNG")
        members[f"package/{Path(name).stem}.png"] = picture.getvalue()
    labels = [int(label) for _, _, labels in batches.values() for label in labels]
    members["package/train_lables.json"] = json.dumps(labels[:20]).encode()
    members["package/test_lables.json"] = json.dumps(labels[20:]).encode()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for member, content in members.items():
            zipped.writestr(member, content)
    rebuilt = image_sources._cifar10_from_png(IMAGES["cifar10"], tmp_path / "a.zip", "package")
    assert rebuilt == {name: data for name, (data, _, _) in batches.items()}


def test_mnist_is_rebuilt_from_csv(tmp_path: Path) -> None:
    parts = {"train": digits(5, 0), "test": digits(3, 1)}
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as zipped:
        for part, (images, labels) in parts.items():
            rows = np.column_stack([labels, images.reshape(len(images), -1)])
            lines = [",".join(map(str, row)) for row in rows.tolist()]
            zipped.writestr(f"data/mnist_{part}.csv", "label,1x1\n" + "\n".join(lines) + "\n")
    rebuilt = image_sources._mnist_from_csv(IMAGES["mnist"], tmp_path / "a.whl", "data")
    assert rebuilt == idx(*parts["train"], "train") | idx(*parts["test"], "t10k")


def photo(path: Path, width: int, height: int, mode: str = "RGB") -> None:
    draw = np.random.RandomState(width * height)
    small = Image.fromarray(draw.randint(256, size=(4, 4, 3)).astype(np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    small.resize((width, height)).convert(mode).save(path)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Three classes, photographs of different sizes, some of them grey; four of them make a shard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shard_format, "PER_SHARD", 4)
    for part, count in (("train", 4), ("val", 2)):
        for c, name in enumerate(("n01", "n02", "n03")):
            for i in range(count):
                photo(tmp_path / part / name / f"{i}.JPEG", 40 + 7 * i + c, 50 - 5 * i, "L" if i == 1 else "RGB")
    return Dataset(
        name="p", kind="folder", train=str(tmp_path / "train"), test=str(tmp_path / "val"), size=32, validation=3
    )


def as_jpeg(image: Image.Image) -> torch.Tensor:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return torchvision.transforms.functional.pil_to_tensor(Image.open(buffer))


@pytest.mark.parametrize(
    ("size", "stored"), [(32, torchvision.transforms.PILToTensor()), (64, as_jpeg)], ids=["exact", "jpeg"]
)
def test_photographs_are_stored_as_torchvision_would_resize_them(
    photos: Dataset, size: int, stored: Callable[[Image.Image], torch.Tensor]
) -> None:
    prepare(replace(photos, size=size), "stop")
    test = load_images("data/p", "test")
    expected = torchvision.datasets.ImageFolder(
        str(photos.test),
        transform=torchvision.transforms.Compose([torchvision.transforms.Resize(size), stored]),
    )
    taken = test.take(torch.arange(len(test)))
    assert isinstance(taken, list) and test.ragged and test.classes == expected.classes
    assert len(test) == len(expected) == 6 and len({image.shape for image in taken}) > 1
    for image, label, (right, right_label) in zip(taken, test.labels, expected, strict=True):
        assert torch.equal(image, right) and label == right_label
    train, validation = load_images("data/p", "train"), load_images("data/p", "validation")
    assert (len(train), len(validation)) == (9, 3)
    assert not Path("work/prepare/p/train").exists()


@pytest.mark.parametrize("bytes_left", (-1, 0, None))
def test_shards_that_are_cut_off_or_gone_are_named(photos: Dataset, bytes_left: int | None) -> None:
    prepare(photos, "stop")
    path = Path("data/p/test-00000.shard")
    content = path.read_bytes()
    path.unlink()
    if bytes_left is not None:
        path.write_bytes(content[:bytes_left])
    with pytest.raises(StudyError, match=r"test-00000\.shard: cannot be read .*`python -m pipeline\.prepare p`"):
        load_images("data/p", "test")
    assert len(load_images("data/p", "train"))


def test_a_folder_for_testing_only(photos: Dataset) -> None:
    prepare(Dataset(name="ood", kind="folder", test=photos.test, size=32), "stop")
    assert len(load_images("data/ood", "test")) == 6


def test_a_relative_path_is_looked_for_in_the_mirror(
    photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    relative = Dataset(name="p", kind="folder", test="val", size=32)
    with pytest.raises(MissingData, match=r"p\.test: the folder val exists neither here nor in the mirror"):
        find_folder(relative)
    monkeypatch.setenv(MIRROR, str(tmp_path))
    assert find_folder(relative).summary["rows"] == {"test": 6}


def test_every_unreadable_image_is_named_and_what_was_read_stays_read(photos: Dataset, tmp_path: Path, capsys) -> None:
    undisturbed = find_folder(photos, tmp_path / "other").summary["digest"]
    bad = [tmp_path / "val/n01/0.JPEG", tmp_path / "val/n02/1.JPEG", tmp_path / "val/n03/1.JPEG"]
    whole = [path.read_bytes() for path in bad]
    for path, content in zip(bad, (whole[0][: len(whole[0]) // 2], b"", b"not an image"), strict=True):
        path.write_bytes(content)
    with pytest.raises(StudyError, match="3 of 18 images cannot be read") as caught:
        find_folder(photos)
    assert all(str(path) in str(caught.value) for path in bad)
    for path, content in zip(bad, whole, strict=True):
        path.write_bytes(content)
    capsys.readouterr()
    prepare(photos, "stop")
    assert "12 of 18 images are already written" in capsys.readouterr().err
    assert json.loads(Path("data/p/summary.json").read_text())["digest"] == undisturbed
    test = load_images("data/p", "test")
    fresh = find_folder(photos, tmp_path / "fresh").parts["test"]
    content = b"".join(shard.read_bytes() for shard in fresh.shards)
    assert b"".join(test.shards.read(row) for row in range(len(test))) == content


def test_a_changed_photograph_is_read_again(photos: Dataset, tmp_path: Path) -> None:
    before = find_folder(photos).summary["digest"]
    assert find_folder(photos).summary["digest"] == before
    photo(tmp_path / "train/n02/0.JPEG", 61, 47)
    assert find_folder(photos).summary["digest"] == find_folder(photos, tmp_path / "other").summary["digest"] != before


def test_a_full_disk_is_said_and_the_rest_goes_on_later(photos: Dataset) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        with pytest.raises(StudyError, match=r"\.shard: cannot be written \(File too large\); free some space"):
            find_folder(photos)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    prepare(photos, "stop")
    assert len(load_images("data/p", "train")) == 9


@pytest.mark.parametrize("left_out", ["test_places.npy", "test-00001.shard", "checksums.json", "summary.json"])
@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_stopped_while_all_is_put_in_place_nothing_is_written_again(
    photos: Dataset, monkeypatch: pytest.MonkeyPatch, left_out: str, fault: BaseException
) -> None:
    def faulty(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if left_out in {given.name for given in arguments if isinstance(given, Path)}:
                raise fault
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        for module, name in ((np, "save"), (os, "link"), (shutil, "copyfile"), (files, "write_json")):
            patch.setattr(module, name, faulty(getattr(module, name)))
        with pytest.raises(StudyError if isinstance(fault, OSError) else KeyboardInterrupt):
            prepare(photos, "stop")
    assert not list(Path("data").iterdir())
    monkeypatch.setattr(shard_writing, "encoded", lambda path, size: pytest.fail(f"{path} is read again"))
    prepare(photos, "stop")
    assert len(load_images("data/p", "train")) == 9 and len(load_images("data/p", "test")) == 6
    assert not Path("work/prepare/p").exists()


def test_shards_are_copied_where_they_cannot_be_linked(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, name: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    prepare(photos, "stop")
    assert len(load_images("data/p", "train")) == 9 and not Path("work/prepare/p").exists()


def test_what_is_written_anew_does_not_reach_the_folder_that_is_there(
    photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before work/ was emptied, both have the same file."""
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", lambda path: None)
        prepare(photos, "stop")
    shards = sorted(Path("data/p").glob("train-*.shard"))
    before = [shard.read_bytes() for shard in shards]
    assert all(Path("work/prepare/p/train", shard.name).samefile(shard) for shard in shards)
    for path in (tmp_path / "train").rglob("*.JPEG"):
        photo(path, 61, 47)
    find_folder(photos)
    assert [shard.read_bytes() for shard in shards] == before
    assert not any(Path("work/prepare/p/train", shard.name).samefile(shard) for shard in shards)


def test_bad_folders_are_named(photos: Dataset, tmp_path: Path) -> None:
    def folder(**keys: Any) -> Dataset:
        return Dataset(
            **{"name": "p", "kind": "folder", "train": photos.train, "test": photos.test, "size": 32, **keys}
        )

    with pytest.raises(MissingData, match=r"p\.train: the folder .*nowhere exists neither"):
        find_folder(folder(train=str(tmp_path / "nowhere")))
    with pytest.raises(StudyError, match=r"p\.test: .* has no subfolders"):
        find_folder(folder(test=str(tmp_path / "val/n01")))
    (tmp_path / "val/n04").mkdir()
    with pytest.raises(StudyError, match=r"p\.test: no images in the class n04"):
        find_folder(folder())
    photo(tmp_path / "val/n04/0.png", 40, 40)
    with pytest.raises(StudyError, match="only in train: none; only in test: n04"):
        find_folder(folder())
    with pytest.raises(StudyError, match=r"p: needs `test`"):
        find_folder(folder(test=None))


def test_one_class_leaves_nothing_to_tell_apart(photos: Dataset, tmp_path: Path) -> None:
    for part in ("train", "alone"):
        photo(tmp_path / f"only/{part}/n01/0.png", 40, 40)
    one = Dataset(name="p", kind="folder", train=f"{tmp_path}/only/train", test=f"{tmp_path}/only/alone", size=32)
    with pytest.raises(StudyError, match=r"datasets\.p: there is one class, n01, so there is nothing to tell apart"):
        find_folder(one)
