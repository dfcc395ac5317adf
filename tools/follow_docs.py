"""Follows docs/walk.md as a new user would: in a new clone, with new environments, command by command.

    python -m tools.follow_docs                     # in a temporary folder; writes the times into docs/walk.md
    python -m tools.follow_docs --folder FOLDER     # in a clone made in FOLDER, which stays

All blocks of the page become one shell script, which stops at the first command that fails. The clone has what is
committed. Ports 5000 and 5001 of this machine must be free, and curl and Chromium or Chrome on the PATH.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.screenshots import BROWSERS
from tools.writing import write

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "walk.md"
PROGRAMS, PORTS = ("git", "make", "curl"), (5000, 5001)
SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMES = re.compile(r"(<!-- times -->\n).*(<!-- /times -->)", re.DOTALL)
MARK = "@@ step "  # begins the line that the script prints before a step
HERE = "END_OF_BLOCK"


class Step(NamedTuple):
    """A section of the page: its heading, and its blocks as a shell script."""

    name: str
    script: str


def steps(text: str) -> list[Step]:
    """The sections that have blocks to run."""
    parts = SECTION.split(text)[1:]
    found = [Step(name, _script(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)]
    return [step for step in found if step.script]


def _script(section: str) -> str:
    return "".join(
        body if kind == "bash" else f"python - <<'{HERE}'\n{body}{HERE}\n" for kind, body in BLOCK.findall(section)
    )


def follow(walk: list[Step], folder: Path) -> Iterator[tuple[Step, float]]:
    """Runs the steps in one shell; yields each with its seconds once it has ended.

    Raises:
        subprocess.CalledProcessError: a command failed; the steps before it have been yielded.
    """
    marked = [f"echo '{MARK}{number}'\n{step.script}" for number, step in enumerate(walk)]
    script = "\n".join(["set -eo pipefail", *marked, f"echo '{MARK}{len(walk)}'", ""])
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        began = time.monotonic()
        for line in shell.stdout:
            if not line.startswith(MARK):
                print(line, end="", flush=True)
                continue
            number = int(line.removeprefix(MARK))
            if number:
                yield walk[number - 1], time.monotonic() - began
            if number < len(walk):
                print(f"\n=== {walk[number].name}", flush=True)
            began = time.monotonic()
    if shell.returncode:
        raise subprocess.CalledProcessError(shell.returncode, "bash")


def environment() -> dict[str, str]:
    """This process's, as if no environment of Python were active."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MLFLOW_TRACKING_URI", "MAKEFLAGS", "MAKELEVEL")
    known = {name: value for name, value in os.environ.items() if name not in left_out}
    own = str(Path(sys.prefix) / "bin")
    known["PATH"] = os.pathsep.join(place for place in known["PATH"].split(os.pathsep) if place != own)
    return known


def commit(repository: Path = ROOT) -> str:
    """What is cloned, as readers find it: a commit of main, and the number of those on top.

    A commit of another branch may get another name on its way to main.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=repository, capture_output=True, text=True, check=True
        ).stdout.strip()

    branches = git("for-each-ref", "--format=%(refname)", "refs/heads/main", "refs/remotes/origin/main").split()
    known = git("merge-base", "HEAD", (branches or ["HEAD"])[-1])
    later = int(git("rev-list", "--count", f"{known}..HEAD"))
    name = git("rev-parse", "--short", known)
    return f"{name} and {later} later" if later else name


def table(times: list[tuple[str, float]], commit: str) -> str:
    """The times as Markdown, with the commit that was cloned and what they were measured on."""
    lines = [f"| {name} | {_said(seconds)} |" for name, seconds in times]
    total = _said(sum(seconds for _, seconds in times))
    threads = f", {os.environ['OMP_NUM_THREADS']} of them for torch" if "OMP_NUM_THREADS" in os.environ else ""
    where = f"{os.cpu_count()} cores{threads}, Python {platform.python_version()}, commit {commit}"
    return "\n".join(["", "| step | time |", "| --- | --- |", *lines, f"| all | {total} |", "", f"{where}.", "", ""])


def _said(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _missing() -> str | None:
    """What keeps the walk from being taken here."""
    if absent := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"{absent[0]} is not on the PATH; install it"
    if not any(map(shutil.which, BROWSERS)):
        return f"no browser is on the PATH; install one of {', '.join(BROWSERS)}"
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"something listens on port {port} of this machine; end it first"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="clone into this folder, which must be new, and keep it")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the times go (default: docs/walk.md)")
    arguments = parser.parse_args()
    if problem := _missing():
        sys.exit(f"error: {problem}")
    with tempfile.TemporaryDirectory() as temporary:
        clone = arguments.folder or Path(temporary) / "mnvi"
        subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(clone)], check=True)
        cloned = commit()
        walk, taken = steps(PAGE.read_text()), list[tuple[str, float]]()
        try:
            for step, seconds in follow(walk, clone):
                print(f"--- {step.name}: {_said(seconds)}", flush=True)
                taken.append((step.name, seconds))
        except subprocess.CalledProcessError as error:
            sys.exit(f"error: step {walk[len(taken)].name!r} of {PAGE.name} failed with exit code {error.returncode}")
    text = arguments.page.read_text()
    write(arguments.page, TIMES.sub(lambda found: f"{found[1]}{table(taken, cloned)}{found[2]}", text))


if __name__ == "__main__":
    main()
