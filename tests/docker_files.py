"""The files of docker/ as their readers see them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
SECRET = re.compile(r"PASSWORD|TOKEN$|SECRET|ACCESS_KEY")


def dockerfile() -> list[tuple[str, str]]:
    """Instructions with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in text.splitlines() if line.strip()]


def example() -> dict[str, str]:
    lines = (DOCKER / "env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose(environment: dict[str, str] | None = None) -> dict[str, Any]:
    """compose.yaml with its variables filled in; without an environment, with the names of those that are secret."""
    values = environment or {name: value or f"<{name}>" for name, value in example().items()}
    text = VARIABLE.sub(lambda match: values[match[1]], (DOCKER / "compose.yaml").read_text())
    return yaml.safe_load(text)
