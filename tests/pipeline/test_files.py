"""Files that one stage writes and another reads: the messages when they are damaged."""

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


@pytest.mark.parametrize(
    "text, value",
    [
        ("5e-08", 5e-8),
        ("-1E5", -1e5),
        (".5e3", 500.0),
        ("1.e+2", 100.0),
        ("5", 5),
        ("0.5", 0.5),
        ("e5", "e5"),
        ("'5e-08'", "5e-08"),
        ("5e-08x", "5e-08x"),
        ("12e", "12e"),
    ],
)
def test_numbers_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = files.parse_yaml(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("value", [5e-8, 1e22, "5e-08", "1e5", "12", 12, True, None])
def test_yaml_is_read_as_it_was_written(tmp_path: Path, value: object) -> None:
    files.write_yaml(tmp_path / "it.yaml", {"key": value})
    assert files.read_yaml(tmp_path / "it.yaml", "a test") == {"key": value}


@pytest.mark.parametrize(
    "text", ["{a: 1, b: 2, a: 3}", "a:\n  b: 1\n  b: 2\n", "x: &x {a: 1}\ny: {<<: *x, a: 2, a: 3}"]
)
def test_a_key_that_stands_twice_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"the key '[ab]' occurs twice in one section\s+in .*, line \d"):
        files.parse_yaml(text)


def test_a_key_may_replace_one_that_is_merged_in() -> None:
    text = "x: &x {a: 1}\ny: &y {<<: *x, a: 2}\nz: {<<: *y, a: 3}\n"
    assert files.parse_yaml(text) == {"x": {"a": 1}, "y": {"a": 2}, "z": {"a": 3}}


def test_yaml_makes_nothing_but_plain_data() -> None:
    with pytest.raises(ValueError, match="could not determine a constructor"):
        files.parse_yaml("!!python/object/apply:os.getcwd []")
