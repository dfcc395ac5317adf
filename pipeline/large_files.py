"""Large files of a data set on this node: each is fetched from storage when it is first read, and kept.

A file beside a fetched folder names the storage (:func:`pipeline.blobs.origin`), and checksums.json the digests. All
processes of a node share one copy. ``MNVI_NODE_CACHE_GB`` bounds what the copies of a node take on its disk: the
oldest ones are deleted first, and fetched again if they are still needed.
"""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

from filelock import FileLock

from pipeline import blobs, files, storage
from pipeline.errors import StudyError

LIMIT = "MNVI_NODE_CACHE_GB"


def local(folder: Path, name: str) -> Path:
    """The path of a large file of a data set; fetches the file if neither the folder nor the node has it."""
    path = folder / name
    if path.exists():
        return path
    source = _source(folder, name)
    if source is None:
        return path  # the caller says that it is missing
    root, digest = source
    copy = _copies() / digest
    if not copy.exists():
        with FileLock(copy.with_suffix(".lock")):
            if not copy.exists():
                _fetch(root, digest, copy)
    return copy


def is_fetched(folder: Path) -> bool:
    """Whether the folder came from storage, which has its large files."""
    return blobs.origin(folder.resolve()).exists()


def forget(folder: Path, name: str) -> bool:
    """Deletes the node's copy, which is damaged; returns whether there is a storage to fetch it from again."""
    source = None if (folder / name).exists() else _source(folder, name)
    if source is None:
        return False
    files.remove(_copies() / source[1])
    return True


@functools.lru_cache(maxsize=65536)  # asked for every image
def _source(folder: Path, name: str) -> tuple[storage.Anywhere, str] | None:
    """The storage that has the file, and the file's digest."""
    if not is_fetched(folder):
        return None
    root = storage.at(files.read_json(blobs.origin(folder.resolve()), "a training on the cluster"))
    return root, _checksums(folder)[name]


@functools.lru_cache(maxsize=64)
def _checksums(folder: Path) -> dict[str, str]:
    return blobs.checksums(folder)


def _copies() -> Path:
    folder = blobs.node_cache() / "large"
    folder.mkdir(exist_ok=True)
    return folder


def _fetch(root: storage.Anywhere, digest: str, copy: Path) -> None:
    with files.replacing(copy) as temporary:
        blobs.fetch(root, digest, temporary)
    _make_room(copy)


def limit() -> float:
    """Bytes that the copies of a node may take."""
    given = os.environ.get(LIMIT)
    try:
        return float(given) * 1e9 if given else math.inf
    except ValueError as error:
        raise StudyError(f"{LIMIT}={given}: expected a number of gigabytes, e.g. 20") from error


def _make_room(newest: Path) -> None:
    """Deletes the oldest copies until the rest fits; a process that is reading one keeps what it has opened."""
    most = limit()
    if most == math.inf:
        return
    copies = []
    for path in newest.parent.iterdir():
        if path.suffix or path.name.startswith("."):
            continue
        try:
            status = path.stat()
        except FileNotFoundError:  # another process deletes, too
            continue
        copies.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if total <= most or path == newest:
            return
        files.remove(path)
        total -= size
