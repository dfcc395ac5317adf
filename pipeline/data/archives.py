"""Single files out of archives: only members asked for by name, never larger than stated, nothing written to disk.

Members come into memory, so that no name, link or device in an archive can reach a file. What a tar archive holds
besides has to be unpacked on the way to them, and is bounded too.
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
    *(zipfile.BadZipFile, RuntimeError),  # the latter: locked by a password, or compressed in a way that is not known
)
"""What the readers of this module raise for a damaged archive."""
RATIO = 50  # by which an archive may grow; those of the study grow at most tenfold
SLACK = 64 << 20  # bytes that a small one may unpack to all the same
ENTRIES = 100_000


def members(archive: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    """The members named in ``limits``, each at most so many bytes long; KeyError for one that is not there."""
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
    """As the first bytes tell; a name can say anything."""
    start = file.read(6)
    file.seek(0)
    for magic, opened in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            return opened(file)
    return file


class _Bounded:
    """A stream that ends with an error after so many bytes: headers of a tar archive can be bombs, too."""

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
    """The data.tar within a Debian package, which is an `ar` archive: 60 bytes of header, then the member."""
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
