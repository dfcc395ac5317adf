"""Sends records that an unreachable MLflow server has not received yet, or mends mlflow.db after a move.

python -m pipeline.tracking send
python -m pipeline.tracking send work/results/train
python -m pipeline.tracking moved                        after the project's folder was moved
"""

from __future__ import annotations

from pathlib import Path

from pipeline import console
from pipeline.errors import StudyError
from pipeline.tracking.relocation import relocate
from pipeline.tracking.sender import leftovers, send


def main() -> None:
    parser = console.parser("pipeline.tracking", __doc__)
    parser.add_argument("action", choices=["send", "moved"])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("work"), help="where stages keep their state")
    given = parser.parse_args()
    if given.action == "moved":
        console.say(f"{relocate()} locations of artifacts now point to this folder")
        return
    if given.folder != Path("work") and not given.folder.is_dir():
        raise StudyError(f"{given.folder}: no such folder; stages keep what they could not send in work/")
    waiting = len(list(leftovers(given.folder)))
    complaints = send(given.folder)
    if complaints:
        raise StudyError(f"MLflow has not received all records of {given.folder}:\n  " + "\n  ".join(complaints))
    console.say(f"all records of {waiting} runs are sent" if waiting else "nothing to send")


if __name__ == "__main__":
    console.run(main)
