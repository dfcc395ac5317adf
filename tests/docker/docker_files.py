"""The files of docker/ as their readers see them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
SECRET = re.compile(r"PASSWORD|TOKEN$|SECRET|ACCESS_KEY")


def dockerfile() -> list[tuple[str, str]]:
    """Instructions with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in text.splitlines() if line.strip()]


def copied() -> dict[str, str]:
    """What the last stage takes from the project's folder, and where to."""
    pairs = {}
    for instruction, arguments in dockerfile():
        if instruction == "COPY" and "--from" not in arguments:
            *sources, target = [part for part in arguments.split() if not part.startswith("--")]
            pairs |= {source: target for source in sources}
    return pairs


def lay_out(folder: Path) -> None:
    """The image's /opt/mnvi, as far as it is made of files of the project."""
    for source in copied():
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / source, folder / source)


def example() -> dict[str, str]:
    lines = (DOCKER / "env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose(environment: dict[str, str] | None = None) -> dict[str, Any]:
    """compose.yaml with its variables filled in; without an environment, with the names of those that are secret."""
    values = environment or {name: value or f"<{name}>" for name, value in example().items()}
    text = VARIABLE.sub(lambda match: values[match[1]], (DOCKER / "compose.yaml").read_text())
    return yaml.safe_load(text)
