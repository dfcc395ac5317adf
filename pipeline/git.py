"""Questions to git about the folder that a stage works in."""

from __future__ import annotations

import subprocess


def ask(*arguments: str) -> str | None:
    """What git answers; None outside of a repository, and where there is no git, as in the project's image."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
