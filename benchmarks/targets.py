"""What uncertainty may cost, and what it costs: ratios to the fastest deterministic network of the same run.

    python -m benchmarks.targets                        # everything; writes benchmarks/results/targets.json
    python -m benchmarks.targets --models lenet --quantities inference single    # a part, merged into the file

"inference" and "training" are steps with batches of 100 images, "memory" is what the forward pass of such a training
step keeps for the backward pass, "single" is inference with one image. The deterministic network runs in eager mode,
with channels last, and compiled with its batch norms folded; the fastest of them, or the smallest memory, is 1. The
Bayesian networks are compiled. All of them take turns, round after round; a figure is the median over the rounds.
Memory needs no rounds, and no machine to itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.subjects import MODELS, MODES, Subject
from benchmarks.timing import conditions, interleaved, kept_for_backward, write

RESULTS = Path(__file__).parent / "results" / "targets.json"
METHODS = ("mnvi", "mnvi_factored", "mfvi")
QUANTITIES = {
    "inference": "inference",
    "single": "inference, one image",
    "training": "training step",
    "memory": "memory kept for backward",
}
LABELS = {"mnvi": "MNVI, exact", "mnvi_factored": "MNVI, factored", "mfvi": "MFVI, exact"}
_DIVIDES_ONLY = "aot_eager_decomp_partition"  # decides what to keep as the default backend does, and compiles nothing
TARGETS = {  # the largest ratios that we accept
    ("inference", "mnvi"): {"lenet": 2.4, "all_cnn": 2.15, "resnet18": 2.1},
    ("inference", "mnvi_factored"): {"lenet": 1.8, "all_cnn": 1.2, "resnet18": 1.2},
    ("single", "mnvi_factored"): {"lenet": 2.0},
    ("training", "mnvi"): {"lenet": 2.3, "all_cnn": 2.1, "resnet18": 2.1},
    ("training", "mnvi_factored"): {"lenet": 1.8, "all_cnn": 1.35, "resnet18": 1.35},
    ("memory", "mnvi_factored"): {"lenet": 2.0, "all_cnn": 1.6, "resnet18": 1.6},
}


def measure(model: str, quantity: str, methods: Iterable[str], batch: int, rounds: int) -> list[dict]:
    """One record for each subject."""
    pairs = [("deterministic", mode) for mode in MODES] + [(method, "compiled") for method in methods]
    step = "inference" if quantity in ("inference", "single") else "training"
    batch = 1 if quantity == "single" else batch
    backend = _DIVIDES_ONLY if quantity == "memory" else "inductor"
    subjects = [Subject(model, method, mode, step, batch, backend) for method, mode in pairs]
    if quantity == "memory":
        return [{**s.record(), "quantity": quantity, "figure": kept_for_backward(s)} for s in subjects]
    times = interleaved([subject.step for subject in subjects], rounds)
    return [
        {**subject.record(), "quantity": quantity, "figure": figure}
        for subject, figure in zip(subjects, times, strict=True)
    ]


def ratio(records: list[dict], model: str, quantity: str, method: str) -> float | None:
    """The ratio of a method to the best deterministic network; None if it was not measured."""
    here = [record for record in records if (record["model"], record["quantity"]) == (model, quantity)]
    own = [record["figure"] for record in here if record["method"] == method]
    best = [record["figure"] for record in here if record["method"] == "deterministic"]
    return own[0] / min(best) if own else None


def markdown(document: dict) -> str:
    """A row for each quantity and method; what misses its target is bold."""
    records = document["records"]
    lines = ["| | " + " | ".join(MODELS) + " |", "| --- " * (len(MODELS) + 1) + "|"]
    for quantity, title in QUANTITIES.items():
        for method in METHODS:
            found = [ratio(records, model, quantity, method) for model in MODELS]
            limits = TARGETS.get((quantity, method), {})
            if any(found) or limits:
                cells = [_cell(value, limits.get(model)) for model, value in zip(MODELS, found, strict=True)]
                lines.append(f"| {title}, {LABELS[method]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: float | None, limit: float | None) -> str:
    if value is None:
        return "" if limit is None else f"not run (≤ {limit:g})"
    text = f"{value:.2f}"
    if limit is None:
        return text
    return f"{text} (≤ {limit:g})" if value <= limit else f"**{text}** (≤ {limit:g})"


def merged(records: list[dict], new: list[dict]) -> list[dict]:
    """The records, with new ones in the place of those of the same model and quantity."""
    measured = {(record["model"], record["quantity"]) for record in new}
    return [record for record in records if (record["model"], record["quantity"]) not in measured] + new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--quantities", nargs="+", choices=list(QUANTITIES), default=list(QUANTITIES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--batch", type=int, default=100, help="batch size (default: 100)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds over all subjects (default: 11)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file for the figures")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    document = {
        **conditions(arguments.batch, arguments.rounds),
        "records": json.loads(arguments.output.read_text())["records"] if arguments.output.exists() else [],
    }
    for model in arguments.models:
        for quantity in arguments.quantities:
            if quantity == "single" and model not in TARGETS["single", "mnvi_factored"]:
                continue
            torch.compiler.reset()
            new = measure(model, quantity, arguments.methods, arguments.batch, arguments.rounds)
            document["records"] = merged(document["records"], new)
            write(arguments.output, document)  # a stop loses one model and quantity at most
    print(markdown(document))


if __name__ == "__main__":
    main()
