"""Servers that tests and the fault campaign start: how to tell that one is ready."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from pathlib import Path

from tools.ray_nodes import NotStarted

PATIENCE = 300.0  # seconds; machines that run tests may have other things to do


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path | None = None) -> None:
    """Returns once the server answers at this address. Raises NotStarted, with its log, if it ends or is too slow."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(url, timeout=30).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until:
                said = f":\n{log.read_text()}" if log is not None else ""
                raise NotStarted(f"no server answers at {url} ({error}){said}") from error
        time.sleep(0.2)
