"""Time and memory of Bayesian networks as ratios to the deterministic network.

All subjects run in turn, round after round, in one process; a figure is the median over the rounds. On a shared machine
times drift; ratios within one run drift much less.

    python -m benchmarks                          # LeNet, AllCNN, ResNet18; writes benchmarks/results/speed.json
    python -m benchmarks --models lenet --rounds 3    # a part; written only with --output
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.subjects import METHODS, MODELS, MODES, Subject
from benchmarks.tables import RESULTS, markdown, ratios
from benchmarks.timing import conditions, interleaved, kept_for_backward, write


def measure(model: str, methods: list[str], modes: list[str], batch: int, rounds: int) -> list[dict]:
    """One record per method, mode and quantity."""
    records = []
    for quantity in ("inference", "training"):
        subjects = [Subject(model, method, mode, quantity, batch) for method in methods for mode in modes]
        times = interleaved([subject.step for subject in subjects], rounds)
        for subject, milliseconds in zip(subjects, times, strict=True):
            records.append(subject.record(milliseconds=milliseconds))
    for method in methods:
        for mode in modes:
            subject = Subject(model, method, mode, "training", batch)
            records.append({**subject.record(), "quantity": "memory", "bytes": kept_for_backward(subject)})
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--batch", type=int, default=100, help="batch size (default: 100)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds over all subjects (default: 7)")
    parser.add_argument("--output", type=Path, help="JSON file for the figures (default: speed.json if all run)")
    arguments = parser.parse_args()
    chosen = [set(arguments.models), set(arguments.methods), set(arguments.modes)]
    if arguments.output is None and chosen == [set(MODELS), set(METHODS), set(MODES)]:
        arguments.output = RESULTS  # the tables of docs/speed.md need all of it
    if "deterministic" not in arguments.methods or "eager" not in arguments.modes:
        parser.error("all figures are compared with the eager deterministic network: keep deterministic and eager")

    torch.manual_seed(0)
    document = conditions(arguments.batch, arguments.rounds)
    records: list[dict] = []
    for model in arguments.models:
        torch.compiler.reset()
        records += measure(model, arguments.methods, arguments.modes, arguments.batch, arguments.rounds)
        print(markdown(model, ratios([r for r in records if r["model"] == model])), flush=True)
        if arguments.output is not None and arguments.output != RESULTS:
            write(arguments.output, {**document, "records": records})  # a stop loses at most one model
    if arguments.output == RESULTS:
        write(RESULTS, {**document, "records": records})


if __name__ == "__main__":
    main()
