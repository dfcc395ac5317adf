"""Files in storage, named by the digest of their content: uploaded once, fetched once per node, checked on arrival.

A list of files is stored under its own digest. That one digest is all a worker needs to fetch the whole set.

A folder may state the SHA-256 of its large files in checksums.json. These files are not hashed again when they are
published, and a node fetches each of them only when it is read (:func:`pipeline.large_files.local`).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock

from pipeline import files, storage
from pipeline.console import progress, say
from pipeline.errors import StudyError
from pipeline.storage import Anywhere

NODE_CACHE = "MNVI_NODE_CACHE"
CHECKSUMS = "checksums.json"
AT_A_TIME = 8  # uploads


class NotInStorage(StudyError):
    """Storage answers, but does not have the file: there is no use in trying again."""


@dataclass(frozen=True)
class Contents:
    """A set of files in storage."""

    root: Anywhere
    digest: str  # of their list

    def here(self) -> Path:
        """A folder on this node with all but the large files; the first process fetches them, others on the node wait.

        A file beside the folder says where the large ones are.
        """
        cache = node_cache()
        folder = cache / self.digest
        with FileLock(cache / f"{self.digest}.lock"):
            if not folder.exists():
                files.write_json(origin(folder), str(self.root))
                with files.replacing(folder) as temporary:
                    self.write(temporary, large=False)
        return folder

    def write(self, folder: Path, large: bool = True) -> None:
        """Fetches the files into a folder.

        Args:
            large: whether to fetch the files that checksums.json names, too.
        """
        listed = self.listed()
        if not large and CHECKSUMS in listed:
            folder.mkdir(parents=True, exist_ok=True)
            fetch(self.root, listed[CHECKSUMS], folder / CHECKSUMS)
            listed = {name: digest for name, digest in listed.items() if name not in checksums(folder)}
        for name, digest in listed.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            fetch(self.root, digest, target)
        say(f"{len(listed)} files, {readable_size(folder)}, fetched from {self.root}")

    def listed(self) -> dict[str, str]:
        """Names and digests."""
        with tempfile.TemporaryDirectory(prefix="mnvi-") as folder:
            copy = Path(folder) / "list.json"
            fetch(self.root, self.digest, copy)
            listed: dict[str, str] = json.loads(copy.read_bytes())
        for name in listed:
            storage.check_inside(_place(self.root, self.digest), PurePosixPath(name))
        return listed


def publish(given: Mapping[str, Path], root: Anywhere) -> Contents:
    """Uploads files and folders under these names; skips content that storage already has."""
    listed: dict[str, str] = {}
    small: list[tuple[Path, str]] = []
    large: list[tuple[Path, str]] = []
    for name, path in given.items():
        stated = checksums(path)
        present = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in sorted({*present, *(path / inside for inside in stated)}):
            inside = file.relative_to(path).as_posix()
            digest = stated.get(inside) or files.sha256(file)
            (large if inside in stated else small).append((file, digest))
            listed[(PurePosixPath(name) / inside).as_posix()] = digest
    with ThreadPoolExecutor(AT_A_TIME) as pool, progress(f"upload to {root}", len(large), "large files") as bar:
        for _ in pool.map(lambda one: _put(one[0], root, one[1]), large):
            bar.advance()
    for file, digest in small:
        _put(file, root, digest)
    text = json.dumps(listed, sort_keys=True).encode()
    digest = hashlib.sha256(text).hexdigest()
    with tempfile.TemporaryDirectory(prefix="mnvi-") as folder:
        copy = Path(folder) / "list.json"
        copy.write_bytes(text)
        _put(copy, root, digest)
    return Contents(root, digest)


def checksums(folder: Path) -> dict[str, str]:
    """The SHA-256 of a folder's large files, by name; empty if it has none."""
    path = folder / CHECKSUMS
    stated: dict[str, str] = files.read_json(path, "python -m pipeline.prepare") if path.exists() else {}
    for name in stated:
        storage.check_inside(folder, PurePosixPath(name))
    return stated


def origin(folder: Path) -> Path:
    """The file beside a fetched folder that names the storage of its large files."""
    return folder.with_name(f"{folder.name}.origin.json")


def node_cache() -> Path:
    """This machine's folder for fetched files. You may delete it whenever no stage is running."""
    given = os.environ.get(NODE_CACHE)
    folder = Path(given) if given else Path(tempfile.gettempdir()) / f"mnvi-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()  # does not follow links: anybody may place one in /tmp that points to a folder of ours
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StudyError(
            f"{folder}: is not a folder that belongs to you and that only you may enter (mode 0700); delete it, or "
            f"set {NODE_CACHE} to such a folder on every node"
        )
    return folder


def readable_size(*paths: Path) -> str:
    """The total size of files and folders, with a unit."""
    found = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    size = float(sum(file.stat().st_size for file in found if file.is_file()))
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _place(root: Anywhere, digest: str) -> Anywhere:
    return root / "blobs" / digest[:2] / digest


def _put(file: Path, root: Anywhere, digest: str) -> None:
    place = _place(root, digest)
    if place.exists():
        return
    if not file.exists():
        raise StudyError(f"{file}: is neither here nor in {root}; write it again with `python -m pipeline.prepare`")
    storage.put(file, place)


def fetch(root: Anywhere, digest: str, target: Path) -> None:
    """Copies the file with this digest from storage, and checks it; waits for storage that is gone."""
    storage.patiently(lambda: _fetch(_place(root, digest), digest, target), root / "blobs")


def _fetch(place: Anywhere, digest: str, target: Path) -> None:
    try:
        storage.fetch(place, target)
    except FileNotFoundError as error:
        raise NotInStorage(f"{place}: is not in storage; run the same command again to upload it") from error
    if files.sha256(target) != digest:
        raise StudyError(
            f"{place}: was altered or damaged: the SHA-256 of its content is not its name; delete it and run the same "
            "command again to upload it anew"
        )
