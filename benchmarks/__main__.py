"""What uncertainty costs, with this project and with other packages, beside the deterministic network.

    python -m benchmarks                                           # everything; an hour on two quiet cores
    python -m benchmarks --models lenet --methods mnvi laplace     # a part
    python -m benchmarks --again busy                              # once more what a busy machine spoilt

Figures go to benchmarks/results/bench.json as soon as they are measured, and from there to docs/speed.md. A run
measures what the file lacks, or has with another batch size, number of threads or torch; so a run that was stopped
resumes. On a machine that is never quiet, ``--clock cpu`` gives CPU times on one thread. Other packages are installed
into build/rivals first.

Each method runs in a process of its own, in turn with the deterministic network in its fastest mode (eager, channels
last, or compiled with its batch norms folded). A ratio is the median over the rounds. "memory" is what the forward pass
of a training step keeps for the backward pass. What cannot be measured is recorded with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import rivals
from benchmarks.measuring import CLOCKS, START, Task, as_argument, conditions, threads
from benchmarks.subjects import BOTH, METHODS, MODELS, MODES
from benchmarks.tables import BUSY, PAGE, RESULTS, best_mode, key_of, rendered, replace_between_marks, same
from benchmarks.timing import write

QUANTITIES = ("inference", "training", "memory")
COMPILED = rivals.FOLDER.parent / "compiled"
BATCHES = {"lenet": 100, "all_cnn": 32, "resnet18": 32, "mobilenet_v3_small": 16}
Record = dict[str, Any]


def tasks(arguments: argparse.Namespace, model: str, method: str, records: Sequence[Record]) -> Iterator[Task]:
    """What is still to be measured of a method on a model."""
    batch = arguments.batch or BATCHES[model]
    for quantity in arguments.quantities:
        reference = None
        if method != "deterministic" and quantity != "memory":
            reference = best_mode(records, model, quantity)
        modes = MODES if method == "deterministic" else arguments.modes
        known = {record["mode"]: record for record in same(records, model=model, method=method, quantity=quantity)}
        missing = [mode for mode in modes if mode not in known or outdated(known[mode], batch, arguments)]
        if method == "deterministic" and missing:
            missing = list(modes)  # their ratios are to the fastest of them
        if missing:
            how = arguments.rounds, arguments.seconds, arguments.clock
            yield Task(model, method, missing, quantity, batch, *how, reference)


def outdated(record: Record, batch: int, arguments: argparse.Namespace) -> bool:
    """Whether to measure once more what is known."""
    now = batch, arguments.clock, threads(arguments.clock), torch.__version__
    if now != (record["batch"], record["clock"], record["threads"], record["versions"]["torch"]):
        return True
    busy = (record.get("others") or 0) > BUSY
    return {"all": True, "failed": "why" in record, "busy": busy, None: False}[arguments.again]


def run(wanted: Sequence[Task], limit: float) -> Iterator[Record]:
    """The records of tasks for one method, from a process of its own, as they come.

    What a process that dies or takes too long leaves out fails, with the reason.
    """
    python = rivals.interpreter() if wanted[0].method in rivals.RIVALS else sys.executable
    missing = {key_of(task.key(mode)): (task, mode) for task in wanted for mode in task.modes}
    command = [python, "-m", "benchmarks.measuring", *map(as_argument, wanted)]
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "cwd": Path(__file__).parent.parent}
    settings["env"] = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(COMPILED)}
    for library in COMPILED.rglob("*.so"):
        if library.stat().st_size == 0:  # a run that was stopped while it compiled; torch would load it
            library.unlink()
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stderr=complaints, **settings) as process,
    ):
        clock = threading.Timer(limit, process.kill)
        clock.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(START):
                record = json.loads(line)
                del missing[key_of(record)]
                yield record
        status, in_time = process.wait(), clock.is_alive()
        clock.cancel()
        complaints.seek(0)
        last = ([line.strip() for line in complaints if line.strip()] or ["it said nothing"])[-1]
    why = f"its process ended with {status}: {last[:100]}" if in_time else f"not done in {limit:.0f} s"
    for task, mode in missing.values():
        yield {**task.key(mode), "why": why, **conditions(task)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--quantities", nargs="+", choices=QUANTITIES, default=QUANTITIES)
    parser.add_argument(
        "--modes", nargs="+", choices=BOTH, default=BOTH, help="of all methods but the deterministic one"
    )
    parser.add_argument("--batch", type=int, help=f"batch size (default: {BATCHES})")
    parser.add_argument("--rounds", type=int, default=9, help="rounds at most (default: 9)")
    parser.add_argument("--seconds", type=float, default=8, help="begin no fourth round after this time (default: 8)")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: CPU time on one thread, for a busy machine"
    )
    parser.add_argument("--limit", type=float, default=900, help="seconds for a method on a model (default: 900)")
    parser.add_argument("--again", choices=("busy", "failed", "all"), help="also measure these again")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help=f"JSON file of the figures (default: {RESULTS.name})"
    )
    arguments = parser.parse_args()
    records: list[Record] = json.loads(arguments.output.read_text())["records"] if arguments.output.exists() else []
    methods = [method for method in METHODS if method == "deterministic" or method in arguments.methods]
    for model, method in product(arguments.models, methods):
        wanted = [*tasks(arguments, model, method, records)]
        for record in run(wanted, arguments.limit) if wanted else ():
            print(*key_of(record), record.get("why", ""), file=sys.stderr, flush=True)
            records = [other for other in records if key_of(other) != key_of(record)] + [record]
            write(arguments.output, {"records": records})
    print(rendered({"records": records}))
    if arguments.output == RESULTS:
        replace_between_marks(PAGE, "bench", rendered({"records": records}))
    spoilt = [record for record in records if (record.get("others") or 0) > BUSY]
    if spoilt:
        print(
            f"The machine was too busy to trust {len(spoilt)} of {len(records)} figures, marked ~: other processes "
            f"used more than {BUSY:.0%} of it. Measure them again when it is quiet: python -m benchmarks --again busy",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
