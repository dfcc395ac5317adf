"""Prints the lock file: the installed version of every package that pyproject.toml needs, extras included.

    python tools/lock.py > requirements.lock

It lists only packages reachable from pyproject.toml, so a stray tool in the environment does not end up in the lock. It
cuts local version labels (`2.13.0+cpu` becomes `2.13.0`) and leaves out CUDA's own packages, because the same lock must
serve machines with and without a GPU.
"""

import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
GPU_ONLY = ("nvidia-", "cuda-", "triton")
INSTALLER = "pip"  # comes with the environment; the lock must not downgrade it


def requirements(name: str, extra: str) -> list[Requirement]:
    """The requirements of the distribution `name` on this machine, with `extra` ("" for none)."""
    needed = map(Requirement, distribution(name).requires or [])
    return [r for r in needed if r.marker is None or r.marker.evaluate({"extra": extra})]


def locked(project: dict) -> dict[str, str]:
    """Package name → version for every package that `project` (pyproject's table) reaches."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    queue = [Requirement(line) for group in groups for line in group]
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name == project["name"] or name.startswith(GPU_ONLY) or name == INSTALLER:
            continue
        versions[name] = distribution(name).version.partition("+")[0]
        for extra in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            queue += requirements(name, extra)
    return versions


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print("# Written by `make lock`; do not edit.")
    for name, version in sorted(locked(project).items()):
        print(f"{name}=={version}")
