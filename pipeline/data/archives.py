"""Reads single members of archives by name, each up to a stated size, and writes nothing to disk.

Members are read into memory, so that no name, link or device in an archive can reach a file. To reach them, the reader
of a tar archive must also unpack everything before them; this is bounded, too.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

BROKEN = (
    *(OSError, EOFError, ValueError, KeyError, zlib.error, lzma.LZMAError, tarfile.TarError),
    *(zipfile.BadZipFile, RuntimeError),  # RuntimeError: password, or unknown compression
)
"""What the readers of this module raise for a damaged archive."""
RATIO = 50  # by which an archive may grow; the study's archives grow at most tenfold
SLACK = 64 << 20  # bytes that even a small archive may unpack to
ENTRIES = 100_000


def members(archive: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    """The members named in ``limits``, which gives the largest size of each in bytes; KeyError if one is missing."""
    if archive.suffix in (".whl", ".zip", ".xlsx"):
        with zipfile.ZipFile(archive) as zipped:
            return {name: _read(zipped.open(name), name, limit) for name, limit in limits.items()}
    if archive.suffix == ".deb":
        return _tar_members(io.BytesIO(_debian_data(archive)), limits)
    with archive.open("rb") as file:
        return _tar_members(file, limits)


def gunzip(data: bytes, limit: int) -> bytes:
    return _read(gzip.open(io.BytesIO(data)), "the content", limit)


def _tar_members(file: IO[bytes], limits: Mapping[str, int]) -> dict[str, bytes]:
    found = {}
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    unpacked = _Bounded(_decompressed(file), RATIO * size + SLACK)
    # One pass in the order of the archive: seeking back would unpack it once for every member.
    with tarfile.open(fileobj=cast(IO[bytes], unpacked), mode="r|") as tar:
        for count, entry in enumerate(tar, start=1):
            if count > ENTRIES:
                raise ValueError(f"the archive has more than {ENTRIES} members")
            name = entry.name.removeprefix("./")
            if name in limits and entry.isfile():
                content = tar.extractfile(entry)
                assert content is not None  # it is a regular file
                found[name] = _read(content, name, limits[name])
    for name in limits:
        if name not in found:
            raise KeyError(f"the archive has no member {name}")
    return found


def _decompressed(file: IO[bytes]) -> Any:
    """Chooses the decompression by the first bytes, because file names can be wrong."""
    start = file.read(6)
    file.seek(0)
    for magic, opened in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            return opened(file)
    return file


class _Bounded:
    """A stream that raises an error after ``limit`` bytes: headers of a tar archive can be bombs, too."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file, self._left, self._limit = file, limit, limit

    def read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"the archive unpacks to more than {self._limit} bytes")
        return data


def _read(file: IO[bytes] | gzip.GzipFile, name: str, limit: int) -> bytes:
    with file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{name} unpacks to more than {limit} bytes")
    return data


def _debian_data(archive: Path) -> bytes:
    """The data.tar of a Debian package, an `ar` archive in which each member follows a header of 60 bytes."""
    with archive.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise ValueError("not a Debian package")
        while len(header := file.read(60)) == 60:
            size = int(header[48:58])
            if size < 0:
                raise ValueError("a member of the Debian package has a negative size")
            if header.startswith(b"data.tar"):
                return file.read(size)
            file.seek(size + size % 2, io.SEEK_CUR)
    raise KeyError("the Debian package has no data.tar")
