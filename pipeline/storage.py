"""Storage that all machines of a cluster share: the folder (on NFS, say) or S3 prefix that ``MNVI_STORAGE`` names.

``MNVI_STORAGE`` is an environment variable, like ``RAY_ADDRESS`` and ``MLFLOW_TRACKING_URI``: where machines keep files
is not part of a study, so neither a fingerprint nor a DVC stage depends on it. AWS's own variables give access to S3
(``AWS_ENDPOINT_URL`` for a private server); every node needs them.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pipeline import files
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.masking import masked

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

VARIABLE = "MNVI_STORAGE"
PAUSES = (1.0, 4.0, 15.0, 40.0, 60.0)  # seconds between attempts: storage may be gone for a minute or two
# Words of S3's client about a server that does not answer, or cannot at the moment. Others, such as a wrong key, stay.
_PASSES = re.compile(r"NETWORK_CONNECTION|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT")

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Gone(StudyError):
    """Storage does not answer, or its folder is not there: it may be back in a minute."""


def patiently(do: Callable[[], Result], needs: Anywhere | None = None) -> Result:
    """Does something with storage; if storage is gone, waits for it, for two minutes at most.

    Args:
        needs: a folder that exists as long as the storage is mounted. Without it only errors show that storage is gone.
    """
    for pause in (*PAUSES, None):
        try:
            return _with(needs, do)
        except Gone as error:
            if pause is None:
                raise
            say(f"{error}\nTrying again in {pause:g} seconds")
            time.sleep(pause)
    raise AssertionError


def _with(needs: Anywhere | None, do: Callable[[], Result]) -> Result:
    _check_mounted(needs)
    try:
        done = do()
    except (StudyError, OSError):
        _check_mounted(needs)
        raise
    _check_mounted(needs)  # an unmounted folder looks like an empty one
    return done


def _check_mounted(needs: Anywhere | None) -> None:
    if not isinstance(needs, Path):
        return
    try:
        needs.stat()
    except OSError as error:
        raise Gone(
            f"{needs}: is gone ({error.strerror}); mount the share of {VARIABLE} again, or run the same command again "
            "if you have deleted the folder"
        ) from error


def _patient(method: Callable[Concatenate[Remote, Given], Result]) -> Callable[Concatenate[Remote, Given], Result]:
    @functools.wraps(method)
    def repeated(self: Remote, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return patiently(lambda: method(self, *args, **kwargs))

    return repeated


@dataclass(frozen=True, order=True)
class Remote:
    """A file or folder with an address instead of a path; it has the few methods of Path that we need."""

    address: str  # s3://bucket/key

    def __truediv__(self, name: str | PurePosixPath) -> Remote:
        return Remote(f"{self.address}/{name}")

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]

    @_patient
    def exists(self) -> bool:
        from pyarrow.fs import FileType

        with self._reached("read") as (system, path):
            return bool(system.get_file_info(path).type != FileType.NotFound)

    def glob(self, pattern: str) -> list[Remote]:
        """Files below this folder whose path relative to it matches."""
        return [
            self / str(name)
            for name in self.names()
            if name.match(pattern) and len(name.parts) == len(Path(pattern).parts)
        ]

    @_patient
    def names(self) -> list[PurePosixPath]:
        """Paths of all files below this folder, relative to it."""
        from pyarrow.fs import FileSelector

        with self._reached("read") as (system, path):
            found = system.get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
            names = sorted(PurePosixPath(info.path).relative_to(path) for info in found if info.is_file)
        for name in names:
            check_inside(self, name)  # an S3 key may be any text
        return names

    @_patient
    def unlink(self, missing_ok: bool = False) -> None:
        with self._reached("changed") as (system, path):
            try:
                system.delete_file(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    @_patient
    def remove(self) -> None:
        """Deletes the file, or the folder with everything in it, if it exists."""
        from pyarrow.fs import FileType

        with suppress(FileNotFoundError), self._reached("changed") as (system, path):  # others may delete it, too
            kind = system.get_file_info(path).type
            if kind == FileType.Directory:
                system.delete_dir(path)
            elif kind == FileType.File:
                system.delete_file(path)

    @_patient
    def move_to(self, target: Remote) -> None:
        from pyarrow.fs import FileType

        with self._reached("moved") as (system, path):
            if system.get_file_info(path).type == FileType.File:
                system.copy_file(path, _filesystem(target.address)[1])
            for name in self.names():
                system.copy_file(f"{path}/{name}", _filesystem((target / name).address)[1])
        self.remove()

    @contextmanager
    def replacing(self) -> Iterator[Path]:
        """A local path for a file that replaces this one if the block succeeds."""
        with tempfile.TemporaryDirectory(prefix="mnvi-") as folder:
            temporary = Path(folder) / self.name
            yield temporary
            self.put(temporary)

    @_patient
    def put(self, file: Path) -> None:
        """Uploads a file from where it is; it becomes visible once it is whole."""
        from pyarrow.fs import copy_files

        with self._reached("written") as (system, path):
            copy_files(str(file), path, destination_filesystem=system)

    @_patient
    def copy_to(self, copy: Path) -> None:
        from pyarrow.fs import copy_files

        with self._reached("read") as (system, path):
            copy_files(path, str(copy), source_filesystem=system)

    @contextmanager
    def _reached(self, done: str) -> Iterator[tuple[FileSystem, str]]:
        try:
            yield _filesystem(self.address)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            kind = Gone if _PASSES.search(str(error)) else StudyError
            raise kind(
                f"{self.address}: cannot be {done} ({str(error).splitlines()[0]}); check the bucket of {VARIABLE}, "
                "AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, here and on the cluster's nodes"
            ) from error


Anywhere = Path | Remote


def root() -> Anywhere | None:
    """The storage that ``MNVI_STORAGE`` names, if it is set."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return None
    return at(given)


def at(given: str) -> Anywhere:
    scheme, separator, rest = given.partition("://")
    if not separator:
        return Path(given).expanduser().absolute()
    if scheme != "s3" or not rest.strip("/"):
        raise StudyError(
            f"{VARIABLE}={masked(given)}: expected a folder that all machines mount, or s3://bucket/prefix"
        )
    if "@" in rest.partition("/")[0]:  # pyarrow would accept keys here, and Ray's dashboard would show them
        raise StudyError(
            f"{VARIABLE}={masked(given)}: contains a key; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead, "
            "here and on the cluster's nodes"
        )
    return Remote(given.rstrip("/"))


def of(needed_by: str) -> Anywhere:
    """The storage; an error if it is not set, for callers that cannot work without it."""
    found = root()
    if found is None:
        raise StudyError(
            f"{VARIABLE}: is not set, but {needed_by} needs it; set it to a folder that this machine and all nodes of "
            "the cluster mount under the same path, or to s3://bucket/prefix"
        )
    return found


def names(place: Anywhere) -> list[PurePosixPath]:
    """Paths of all files below a folder, relative to it."""
    if isinstance(place, Remote):
        return place.names()
    return sorted(PurePosixPath(file.relative_to(place)) for file in place.rglob("*") if file.is_file())


def check_inside(place: Anywhere, name: PurePosixPath) -> None:
    """Checks that a name read from storage does not lead out of the folder into which it is copied."""
    if name.is_absolute() or ".." in name.parts:
        raise StudyError(
            f"{place}: names {name}, which is outside of its folder; delete it, and check who can write to {VARIABLE}"
        )


def found(place: Anywhere, pattern: str) -> list[Anywhere]:
    """Files below a folder that match the pattern, sorted by name."""
    return sorted(place.glob(pattern), key=str)


def fetch(place: Anywhere, target: Path) -> None:
    """Copies a file from storage."""
    if isinstance(place, Remote):
        place.copy_to(target)
    else:
        shutil.copyfile(place, target)


def put(file: Path, place: Anywhere) -> None:
    """Copies a file to storage, where it appears only once it is complete."""
    if isinstance(place, Remote):
        place.put(file)
        return
    with files.replacing(place) as temporary:
        shutil.copyfile(file, temporary)


def remove(place: Anywhere) -> None:
    """Deletes a file or folder, if it exists."""
    if isinstance(place, Remote):
        place.remove()
    else:
        files.remove(place)


def move(source: Anywhere, target: Anywhere) -> None:
    """Renames a file or folder within one storage.

    A bucket cannot rename: we copy everything before we delete anything, so that an interrupted move can be repeated.
    """
    if isinstance(source, Remote) and isinstance(target, Remote):
        source.move_to(target)
    elif isinstance(source, Path) and isinstance(target, Path):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        except OSError as error:
            raise StudyError(f"{source}: cannot be moved to {target} ({error.strerror or error})") from error
    else:
        raise ValueError(f"move: {source} and {target} are not in one storage")


def write_json(place: Anywhere, value: Any) -> None:
    _write(place, lambda path: files.write_json(path, value))


def write_tensors(place: Anywhere, value: Any) -> None:
    _write(place, lambda path: files.write_tensors(path, value))


def read_json(place: Anywhere, made_by: str) -> Any:
    return _read(place, lambda path: files.read_json(path, made_by))


def read_tensors(place: Anywhere, made_by: str) -> Any:
    return _read(place, lambda path: files.read_tensors(path, made_by))


def _write(place: Anywhere, write: Callable[[Path], None]) -> None:
    if not isinstance(place, Remote):
        write(place)  # it replaces the file itself: nothing could recognise a temporary file of a temporary file
        return
    with place.replacing() as temporary:
        write(temporary)


def _read(place: Anywhere, read: Callable[[Path], Any]) -> Any:
    if not isinstance(place, Remote):
        return read(place)
    with tempfile.TemporaryDirectory(prefix="mnvi-") as folder:
        copy = Path(folder) / place.name
        with suppress(FileNotFoundError):  # the reader reports a missing file itself
            place.copy_to(copy)
        try:
            return read(copy)
        except StudyError as error:
            raise StudyError(str(error).replace(str(copy), str(place))) from error


@functools.cache
def _system(bucket: str) -> Any:
    from pyarrow.fs import FileSystem

    return FileSystem.from_uri(f"s3://{bucket}")[0]


def _filesystem(address: str) -> tuple[FileSystem, str]:
    path = address.removeprefix("s3://")
    return _system(path.partition("/")[0]), path
