"""Asks git about the folder that a stage works in."""

from __future__ import annotations

import subprocess


def ask(*arguments: str) -> str | None:
    """Git's answer; None outside a repository, or if git is not installed, as in the project's image."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
