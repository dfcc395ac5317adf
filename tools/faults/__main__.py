"""A fault campaign: disturbs a small study at random moments until enough faults have hit.

    python -m tools.faults                            # 50 faults, 75 minutes at most; writes docs/faults.md
    python -m tools.faults --faults 7 --output /tmp/faults

After each study it compares everything with the undisturbed one: numbers, weights and runs in MLflow. It also looks for
what the study left behind. It exits with 1 if a check failed or fewer faults hit than requested.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tools.faults import report, room
from tools.faults.campaign import MODES, Campaign, Disturbed, prepared, say
from tools.faults.injections import FAULTS
from tools.faults.study import CELLS

PER_STUDY = 7  # faults at most


def main() -> None:
    arguments = options().parse_args()
    try:
        room.enter("tools.faults", sys.argv[1:])
    except room.NoRoom as error:
        sys.exit(f"error: {error}")
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/tmp"))
    with prepared(folder, arguments.cells, arguments.seed) as campaign:
        sound = run(campaign, arguments)
    if sound:
        shutil.rmtree(folder)
    sys.exit(0 if sound else 1)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=50, help="number of faults that must hit (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of kinds and moments (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=75, help="no fault after this time (default: %(default)s)")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="its cells (default: all)")
    parser.add_argument("--kinds", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="KIND")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="modes of the studies, in turn")
    parser.add_argument("--output", type=Path, help="folder for faults.json and faults.md (default: the project's)")
    return parser


def run(campaign: Campaign, arguments: argparse.Namespace) -> bool:
    """Whether enough faults hit and every study recovered from them."""
    began = time.monotonic()
    until = began + 60 * arguments.minutes
    campaign.undisturbed()
    say(f"undisturbed: {campaign.seconds:.0f} s")
    left = deck(arguments.kinds, arguments.faults, random.Random(arguments.seed))
    studies: list[Disturbed] = []
    while left and time.monotonic() < until:
        hand, left = left[:PER_STUDY], left[PER_STUDY:]
        it = campaign.disturbed(arguments.modes[len(studies) % len(arguments.modes)], hand, until)
        left = hand + left  # what is left of the hand
        studies.append(it)
        say(f"study {len(studies)} ({it.mode}): {len(it.hits)} hits, {it.commands} commands, {it.seconds:.0f} s")
        report.write(
            {
                "command": command(arguments),
                "machine": f"{os.cpu_count()} CPUs ({platform.machine()})",
                "faults": arguments.faults,
                "minutes": (time.monotonic() - began) / 60,
                "undisturbed_seconds": campaign.seconds,
                "studies": [one.document() for one in studies],
            },
            arguments.output,
        )
        if not it.sound:
            say(f"NOT sound: {it.problems}")
            campaign.nodes.restart()  # leftover processes would write to the next study's disk
            kept = shutil.copytree(campaign.disk, campaign.folder / f"unsound-{len(studies)}", symlinks=True)
            say(f"kept in {kept}")
    return not left and all(one.sound for one in studies)


def command(arguments: argparse.Namespace) -> str:
    numbers = f"--faults {arguments.faults} --seed {arguments.seed} --minutes {arguments.minutes:g}"
    parts = {"cells": CELLS, "kinds": FAULTS, "modes": MODES}
    chosen = {name: getattr(arguments, name) for name, whole in parts.items()}
    some = [f"--{name} {shlex.join(given)}" for name, given in chosen.items() if given != list(parts[name])]
    return " ".join(["python -m tools.faults", numbers, *some])


def deck(kinds: list[str], count: int, rng: random.Random) -> list[str]:
    """``count`` faults in random order, equally many of every kind."""
    dealt = [kinds[index % len(kinds)] for index in range(count)]
    rng.shuffle(dealt)
    return dealt


if __name__ == "__main__":
    main()
