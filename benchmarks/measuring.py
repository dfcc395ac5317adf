"""Measures one method on one network in a process of its own, and prints a line of JSON for each figure.

``python -m benchmarks`` starts it, for other packages with the interpreter of their environment. Every time is
measured in turn with the deterministic network in its fastest mode, the reference: a ratio comes from rounds of one
process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import mnvi
from benchmarks.rivals import PACKAGES
from benchmarks.subjects import DIVIDES_ONLY, Subject
from benchmarks.timing import Others, in_turn, kept_for_backward

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
START = '{"model"'  # of a line with a record; other packages print, too


@dataclass(frozen=True)
class Task:
    """What to measure: the modes of a method on a model, in one quantity (inference, training or memory)."""

    model: str
    method: str
    modes: list[str]
    quantity: str
    batch: int
    rounds: int
    seconds: float
    clock: str  # "wall", or "cpu" on one thread
    reference: str | None  # the mode of the deterministic network; None for that network itself

    def key(self, mode: str) -> dict[str, Any]:
        return {"model": self.model, "method": self.method, "mode": mode, "quantity": self.quantity}


def measure(task: Task) -> list[dict[str, Any]]:
    """A record for each mode: its figures, or in ``why`` what went wrong."""
    torch.manual_seed(0)
    found: dict[str, dict[str, Any]] = {}
    subjects: dict[str, Subject] = {}
    for mode in task.modes:
        try:
            backend = DIVIDES_ONLY if task.quantity == "memory" else "inductor"
            step = "inference" if task.quantity == "inference" else "training"
            subject = Subject(task.model, task.method, mode, step, task.batch, backend)
            found[mode] = {"parameters": sum(p.numel() for p in subject.net.parameters())}
            if task.quantity == "memory":
                found[mode]["figure"] = kept_for_backward(subject)
            else:
                subject.step()
                subject.step()
                subjects[mode] = subject
        except Exception as error:  # whatever another package raises is the finding
            found[mode] = {"why": sentence(error)}
    if subjects:
        for mode, figures in _times(task, subjects).items():
            found[mode].update(figures)
    return [{**task.key(mode), **figures, **conditions(task)} for mode, figures in found.items()]


def _times(task: Task, subjects: dict[str, Subject]) -> dict[str, dict[str, Any]]:
    modes, steps = [*subjects], [subject.step for subject in subjects.values()]
    if task.reference is not None:
        reference = Subject(task.model, "deterministic", task.reference, task.quantity, task.batch)
        reference.step()
        reference.step()
        steps.append(reference.step)
    others = Others()
    times = in_turn(steps, task.rounds, task.seconds, CLOCKS[task.clock])
    share = others.share() if task.clock == "wall" else 0.0
    of_reference = times.pop() if task.reference is not None else min(times, key=statistics.median)
    figures = {}
    for mode, taken in zip(modes, times, strict=True):
        ratios = [own / other for own, other in zip(taken, of_reference, strict=True)]
        figures[mode] = {
            "figure": statistics.median(taken),
            "ratio": statistics.median(ratios),
            "low": min(ratios),
            "high": max(ratios),
            "rounds": len(taken),
            "others": share,
        }
    return figures


def conditions(task: Task) -> dict[str, Any]:
    """What a figure depends on besides the code."""
    package = PACKAGES.get(task.method)
    try:
        versions = {} if package is None else {package: version(package)}
    except PackageNotFoundError:
        versions = {}
    return {
        "batch": task.batch,
        "clock": task.clock,
        "threads": threads(task.clock),
        "versions": {"torch": torch.__version__, "mnvi": mnvi.__version__, **versions},
    }


def threads(clock: str) -> int:
    return 1 if clock == "cpu" else torch.get_num_threads()


def sentence(error: BaseException, most: int = 140) -> str:
    """The first line of what an error says, in one short sentence."""
    first = (str(error).strip().splitlines() or [""])[0].strip().rstrip(".")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return (text if len(text) <= most else text[: most - 1].rstrip() + "…").replace("|", "/")


def as_argument(task: Task) -> str:
    return json.dumps(asdict(task))


def main() -> None:
    """Each argument is a task; its records go to standard output as soon as they are there."""
    for argument in sys.argv[1:]:
        torch.compiler.reset()
        task = Task(**json.loads(argument))
        torch.set_num_threads(threads(task.clock))
        for record in measure(task):
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
