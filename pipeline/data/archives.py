"""Single files out of archives: only members asked for by name, never larger than stated, nothing written to disk."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

BROKEN = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, tarfile.TarError)
"""What the readers of this module raise for a damaged archive."""


def members(archive: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    """The members named in ``limits``, each at most so many bytes long; KeyError for one that is not there."""
    if archive.suffix in (".whl", ".zip", ".xlsx"):
        with zipfile.ZipFile(archive) as zipped:
            return {name: _bounded(zipped.open(name), name, limit) for name, limit in limits.items()}
    if archive.suffix == ".deb":
        return _tar_members(io.BytesIO(_debian_data(archive)), limits)
    with archive.open("rb") as file:
        return _tar_members(file, limits)


def gunzip(data: bytes, limit: int) -> bytes:
    return _bounded(gzip.open(io.BytesIO(data)), "the content", limit)


def _tar_members(file: IO[bytes], limits: Mapping[str, int]) -> dict[str, bytes]:
    found = {}
    # One pass in the order of the archive: seeking back would unpack it once for every member.
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for entry in tar:
            name = entry.name.removeprefix("./")
            if name in limits and entry.isfile():
                content = tar.extractfile(entry)
                assert content is not None  # it is a regular file
                found[name] = _bounded(content, name, limits[name])
    for name in limits:
        if name not in found:
            raise KeyError(f"the archive has no member {name}")
    return found


def _bounded(file: IO[bytes] | gzip.GzipFile, name: str, limit: int) -> bytes:
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
            if header.startswith(b"data.tar"):
                return file.read(size)
            file.seek(size + size % 2, io.SEEK_CUR)
    raise KeyError("the Debian package has no data.tar")
