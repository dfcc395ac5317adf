"""What uncertainty may cost, and what it costs: ratios to the fastest deterministic network of the same run.

    python -m benchmarks.targets                        # everything; writes benchmarks/results/targets.json
    python -m benchmarks.targets --models lenet --quantities inference single    # a part, merged into the file

"inference" and "training" are steps with batches of 100 images, "memory" is what the forward pass of such a training
step keeps for the backward pass, "single" is inference with one image, "eager" is inference without the compiler. The
deterministic network runs in eager mode, with channels last, and compiled with its batch norms folded; the fastest of
them, or the smallest memory, is 1. The Bayesian networks are compiled. For "eager" nothing is compiled: all networks
are folded, with the default layout and with channels last, and the faster of the two counts. Networks take turns, round
after round; a figure is the median over the rounds. Memory needs no rounds, and no machine to itself. On a machine that
is never quiet, ``--clock cpu`` gives CPU times on one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.measuring import CLOCKS, threads
from benchmarks.subjects import DIVIDES_ONLY, FOLDED, MODES, Subject
from benchmarks.timing import conditions, interleaved, kept_for_backward, write

RESULTS = Path(__file__).parent / "results" / "targets.json"
METHODS = ("mnvi", "mnvi_factored", "mfvi")
MODELS = ("lenet", "all_cnn", "resnet18")
QUANTITIES = {
    "inference": "inference",
    "single": "inference, one image",
    "eager": "inference, not compiled",
    "training": "training step",
    "memory": "memory kept for backward",
}
LABELS = {"mnvi": "MNVI, exact", "mnvi_factored": "MNVI, factored", "mfvi": "MFVI, exact"}
BATCH = 100
MEAN_FIELD_TARGET = 1.45  # of MFVI's time to that of MNVI
TARGETS = {  # the largest ratios that we accept
    ("inference", "mnvi"): {"lenet": 2.4, "all_cnn": 2.15, "resnet18": 2.1},
    ("inference", "mnvi_factored"): {"lenet": 1.8, "all_cnn": 1.2, "resnet18": 1.2},
    ("single", "mnvi_factored"): {"lenet": 2.0},
    ("eager", "mnvi"): {"lenet": 2.6, "all_cnn": 2.6, "resnet18": 2.6},
    ("training", "mnvi"): {"lenet": 2.3, "all_cnn": 2.1, "resnet18": 2.1},
    ("training", "mnvi_factored"): {"lenet": 1.8, "all_cnn": 1.35, "resnet18": 1.35},
    ("memory", "mnvi_factored"): {"lenet": 2.0, "all_cnn": 1.6, "resnet18": 1.6},
}


def measure(
    model: str, quantity: str, methods: Iterable[str], batch: int, rounds: int, clock: str = "wall"
) -> list[dict]:
    """One record for each subject: its figure, and what the figure depends on."""
    step = "training" if quantity in ("training", "memory") else "inference"
    batch = 1 if quantity == "single" else batch
    backend = DIVIDES_ONLY if quantity == "memory" else "inductor"
    subjects = [Subject(model, *pair, step, batch, backend) for pair in _pairs(quantity, methods)]
    if quantity == "memory":
        figures: list[float] = [kept_for_backward(subject) for subject in subjects]
    else:
        figures = interleaved([subject.step for subject in subjects], rounds, CLOCKS[clock])
    known = {**conditions(batch, rounds), "clock": clock}
    return [
        {**subject.record(), "quantity": quantity, "figure": figure, **known}
        for subject, figure in zip(subjects, figures, strict=True)
    ]


def _pairs(quantity: str, methods: Iterable[str]) -> list[tuple[str, str]]:
    """Method and mode of everything that is compared."""
    if quantity == "eager":
        return [(method, mode) for method in ("deterministic", *methods) for mode in FOLDED]
    return [("deterministic", mode) for mode in MODES] + [(method, "compiled") for method in methods]


def ratio(records: list[dict], model: str, quantity: str, method: str, to: str = "deterministic") -> float | None:
    """The ratio of a method's best figure to that of another method; None if it was not measured."""
    own, other = (_figures(records, model, quantity, name) for name in (method, to))
    return min(own) / min(other) if own and other else None


def _figures(records: list[dict], model: str, quantity: str, method: str) -> list[float]:
    wanted = model, quantity, method
    return [r["figure"] for r in records if (r["model"], r["quantity"], r["method"]) == wanted]


def markdown(document: dict) -> str:
    """A row for each quantity and method; what misses its target is bold."""
    records = document["records"]
    lines = ["| | " + " | ".join(MODELS) + " |", "| --- " * (len(MODELS) + 1) + "|"]
    for quantity, title in QUANTITIES.items():
        for method in METHODS:
            limits = TARGETS.get((quantity, method), {})
            lines += _row(records, f"{title}, {LABELS[method]}", quantity, method, "deterministic", limits)
        limits = dict.fromkeys(MODELS, MEAN_FIELD_TARGET) if quantity in ("inference", "training") else {}
        lines += _row(records, f"{title}, MFVI to MNVI, both exact", quantity, "mfvi", "mnvi", limits)
    return "\n".join(lines)


def _row(records: list[dict], title: str, quantity: str, method: str, to: str, limits: dict[str, float]) -> list[str]:
    found = {model: ratio(records, model, quantity, method, to) for model in MODELS}
    if not limits and not any(found.values()):
        return []
    cells = [_cell(found[model], limits.get(model), _batch(records, model, quantity)) for model in MODELS]
    return [f"| {title} | {' | '.join(cells)} |"]


def _batch(records: list[dict], model: str, quantity: str) -> int | None:
    """The batch size of a measurement, unless it is the usual one."""
    sizes = {r["batch"] for r in records if (r["model"], r["quantity"]) == (model, quantity)}
    return next(iter(sizes - {1 if quantity == "single" else BATCH}), None)


def _cell(value: float | None, limit: float | None, batch: int | None) -> str:
    if value is None:
        return "" if limit is None else f"not run (≤ {limit:g})"
    text = f"{value:.2f}" if limit is None or value <= limit else f"**{value:.2f}**"
    remarks = [] if limit is None else [f"≤ {limit:g}"]
    remarks += [] if batch is None else [f"batch {batch}"]
    return f"{text} ({', '.join(remarks)})" if remarks else text


def merged(records: list[dict], new: list[dict]) -> list[dict]:
    """The records, with new ones in the place of those of the same model and quantity."""
    measured = {(record["model"], record["quantity"]) for record in new}
    return [record for record in records if (record["model"], record["quantity"]) not in measured] + new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--quantities", nargs="+", choices=list(QUANTITIES), default=list(QUANTITIES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--batch", type=int, default=BATCH, help=f"batch size (default: {BATCH})")
    parser.add_argument("--rounds", type=int, default=11, help="rounds over all subjects (default: 11)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: CPU time on one thread")
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file for the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(threads(arguments.clock))
    torch.manual_seed(0)
    document = {"records": json.loads(arguments.output.read_text())["records"] if arguments.output.exists() else []}
    for model in arguments.models:
        for quantity in arguments.quantities:
            if quantity == "single" and model not in TARGETS["single", "mnvi_factored"]:
                continue
            torch.compiler.reset()
            start = time.monotonic()
            new = measure(model, quantity, arguments.methods, arguments.batch, arguments.rounds, arguments.clock)
            print(f"{model}, {quantity}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
            document["records"] = merged(document["records"], new)
            write(arguments.output, document)  # a stop loses one model and quantity at most
    print(markdown(document))


if __name__ == "__main__":
    main()
