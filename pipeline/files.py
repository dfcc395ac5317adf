"""Atomic files, either complete or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import StudyError


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                where = node.value[index][0].start_mark
                raise yaml.composer.ComposerError(None, None, f"the key {key!r} occurs twice in one section", where)
        return node


class _Dumper(yaml.SafeDumper):
    pass


for _one in (_Loader, _Dumper):
    # DVC writes YAML 1.2, which allows numbers without a decimal point (5e-08); PyYAML's 1.1 reads them as text.
    _one.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside ``path`` for a file or folder, which replaces ``path`` if the block succeeds."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        yield temporary
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except OSError as error:
        raise StudyError(
            f"{path}: cannot be written ({error.strerror or error}); free some space or make its folder writable, "
            "then run the same command again"
        ) from error
    finally:
        remove(temporary)


def _remove_abandoned(path: Path) -> None:
    """Deletes temporary files for this path that killed processes of this machine left behind."""
    begun = f".{path.name}.{socket.gethostname()}-"
    for left in path.parent.glob(f"{glob.escape(begun)}*.tmp"):
        ours = re.fullmatch(r"(\d{1,9})-[0-9a-f]{8}\.tmp", left.name.removeprefix(begun))
        if ours is None:
            continue
        try:
            os.kill(int(ours[1]), 0)
        except ProcessLookupError:
            remove(left)
        except PermissionError:  # the process is alive and belongs to another user
            continue


def remove(path: str | Path) -> None:
    """Deletes a file or folder, if it exists."""
    path = Path(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):  # a read-only disk refuses to delete even a file that does not exist
        with suppress(FileNotFoundError):
            path.unlink()


def write_text(path: str | Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, allow_nan=True) + "\n")


def write_yaml(path: str | Path, value: Any) -> None:
    write_text(path, yaml_of(value))


def yaml_of(value: Any, **layout: Any) -> str:
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, **layout))


def write_tensors(path: str | Path, value: Any) -> None:
    """Writes a value that ``torch.load(weights_only=True)`` can read back."""
    import torch  # here: most commands that write files need no torch and should start at once

    content = io.BytesIO()  # in memory first: torch's own writer does not say what is wrong with a disk
    torch.save(value, content)
    with replacing(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def read_text(path: str | Path, made_by: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StudyError(f"{path}: no such file; it is made by `{made_by}`") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read ({error}); delete it and run `{made_by}` again") from error


def read_json(path: str | Path, made_by: str) -> Any:
    try:
        return json.loads(read_text(path, made_by))
    except json.JSONDecodeError as error:
        raise StudyError(f"{path}: not JSON ({error}); delete it and run `{made_by}` again") from error


def parse_yaml(text: str) -> Any:
    """Reads YAML text that holds plain data only.

    Raises:
        ValueError: if the text is not YAML.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(error) from error
    finally:
        loader.dispose()


def read_yaml(path: str | Path, made_by: str) -> Any:
    try:
        return parse_yaml(read_text(path, made_by))
    except ValueError as error:
        raise StudyError(f"{path}: not YAML ({error}); delete it and run `{made_by}` again") from error


def read_tensors(path: str | Path, made_by: str) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise StudyError(f"{path}: no such file; it is made by `{made_by}`") from error
    except Exception as error:  # torch.load raises a different exception for every way a file can be broken
        raise StudyError(f"{path}: cannot be read ({error}); delete it and run `{made_by}` again") from error


def sha256(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
