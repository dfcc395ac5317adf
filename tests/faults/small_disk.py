"""A disk that can be full or read-only: a tmpfs in place of a folder. For root, permissions alone forbid nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BLOCK = bytes(4096)


class SmallDisk:
    """What is mounted at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte is left."""
        ballast = self.folder / "ballast"
        descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
        try:
            with pytest.raises(OSError, match="No space left"):
                while True:
                    os.write(descriptor, BLOCK)
        finally:
            os.close(descriptor)
        yield
        ballast.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self._remount("ro")
        yield
        self._remount("rw")

    def _remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.folder], check=True)


@contextmanager
def mounted(folder: Path, megabytes: int = 32) -> Iterator[SmallDisk]:
    """The test is skipped where nothing may be mounted: a limit on file sizes would not reach other processes, and
    root writes whatever the permissions say."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount a tmpfs (root with CAP_SYS_ADMIN): {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
