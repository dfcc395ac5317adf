"""Files of a stage that another one reads: what is said when they are damaged."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import files
from pipeline.errors import StudyError

MADE_BY_NOBODY = 999_999_999  # no process has this number
READERS = [files.read_text, files.read_json, files.read_yaml, files.read_tensors]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", ["no text", "a folder"])
def test_what_is_no_file_of_its_kind_is_named_with_the_command_that_makes_it(
    tmp_path: Path, read: Callable[[Path, str], Any], kind: str
) -> None:
    path = tmp_path / "best"
    if kind == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\xfe cut off")
    said = r"(?s)best: cannot be read .*delete it and run `python -m pipeline\.tune` again"
    with pytest.raises(StudyError, match=said):
        read(path, "python -m pipeline.tune")


@pytest.mark.parametrize("read", READERS)
def test_what_is_not_there_is_named_with_the_command_that_makes_it(
    tmp_path: Path, read: Callable[[Path, str], Any]
) -> None:
    with pytest.raises(StudyError, match=r"best: no such file; it is made by `python -m pipeline\.tune`"):
        read(tmp_path / "best", "python -m pipeline.tune")


@pytest.mark.parametrize(
    ("read", "text"), [(files.read_json, '{"a": 1'), (files.read_yaml, "a: ["), (files.read_yaml, "a: 2001-99-99")]
)
def test_what_cannot_be_parsed_is_named(tmp_path: Path, read: Callable[[Path, str], Any], text: str) -> None:
    path = tmp_path / "best"
    path.write_text(text)
    with pytest.raises(StudyError, match=r"best: not (JSON|YAML) "):
        read(path, "python -m pipeline.tune")


def test_what_a_killed_process_had_begun_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    begun = f".a.json.{socket.gethostname()}"
    abandoned = f"{begun}-{MADE_BY_NOBODY}-0123abcd.tmp"
    others = {
        f"{begun}-x.tmp",
        f"{begun}-{MADE_BY_NOBODY}-notes.tmp",
        f"{begun}-{'9' * 40}-0123abcd.tmp",
        f"{begun}-{os.getpid()}-0123abcd.tmp",
        f".a.json.elsewhere-{MADE_BY_NOBODY}-0123abcd.tmp",
    }
    for name in {abandoned, *others}:
        (tmp_path / name).touch()
    files.write_json(tmp_path / "a.json", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", *others}
