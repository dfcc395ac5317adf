"""Which code a result comes from: digests of source files, the same wherever they are installed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pipeline import files
from pipeline.errors import StudyError

OF_KIND = {"regression": ["regression", "registry"], "classification": ["images", "data/augmentation.py", "registry"]}


@cache
def of_kind(kind: str) -> str:
    """Of what trains and judges the networks of a kind."""
    root = _folder("pipeline")
    return _digest(root, (root / name for name in OF_KIND[kind]))


@cache
def of_library() -> str:
    root = _folder("mnvi")
    return _digest(root, [root])


def of_packages(modules: Iterable[str]) -> dict[str, str]:
    """Of the packages that these modules of others are in, as a module may use any other of its package."""
    found = {}
    for package in sorted({module.partition(".")[0] for module in modules}):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise StudyError(f"{package}: no package of this name is installed; check the spelling or install it")
        file = Path(spec.origin)
        found[package] = _digest(file.parent, [file.parent if spec.submodule_search_locations else file])
    return found


def _folder(package: str) -> Path:
    """Without importing it, which would take seconds for the library."""
    found = find_spec(package)
    assert found is not None and found.origin is not None  # both come together
    return Path(found.origin).parent


def _digest(root: Path, paths: Iterable[Path]) -> str:
    names = sorted(name for path in paths for name in (path.rglob("*.py") if path.is_dir() else [path]))
    text = "".join(f"{name.relative_to(root)} {files.sha256(name)}\n" for name in names)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
