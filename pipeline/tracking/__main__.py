"""`python -m pipeline.tracking send [folder]`: sends records that an unreachable server has not received yet."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import console
from pipeline.errors import StudyError
from pipeline.tracking.sender import leftovers, send


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.tracking", description=__doc__)
    parser.add_argument("action", choices=["send"])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("work"), help="where stages keep their state")
    given = parser.parse_args()
    waiting = len(list(leftovers(given.folder)))
    complaints = send(given.folder)
    if complaints:
        raise StudyError(f"MLflow has not received all records of {given.folder}:\n  " + "\n  ".join(complaints))
    console.say(f"all records of {waiting} runs are sent" if waiting else "nothing to send")


if __name__ == "__main__":
    console.run(main)
