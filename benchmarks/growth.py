"""How the cost of uncertainty grows with width, depth, batch and image size; a power is fitted to each.

    python -m benchmarks.growth           # measures; writes benchmarks/results/growth.json and docs/pictures/growth.png
    python -m benchmarks.growth --page    # only draws the recorded figures, and writes their powers into docs/speed.md

The network is a stack of 3 × 3 convolutions with ReLUs and a linear layer on their average. One of its four sizes
varies, the others stay. Networks are not compiled; for inference they are folded. Methods take turns on one thread,
and a figure is the median of CPU times, which other processes disturb less than the clock.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import mnvi
from benchmarks.tables import PAGE, replace_between_marks
from benchmarks.timing import write

RESULTS = Path(__file__).parent / "results" / "growth.json"
PICTURE = PAGE.parent / "pictures" / "growth.png"
USUAL = {"width": 64, "depth": 4, "batch": 16, "size": 16}
VARIED: dict[str, tuple[int, ...]] = {
    "width": (16, 32, 64, 128, 256),
    "depth": (2, 4, 8, 16),
    "batch": (4, 8, 16, 32, 64),
    "size": (8, 16, 32, 64),
}
METHODS = {"deterministic": "deterministic", "exact": "MNVI, exact", "factored": "MNVI, factored"}
QUANTITIES = {"inference": "inference", "training": "training step"}


def network(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Conv2d(width if number else 3, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def step_of(method: Any, quantity: str, width: int, depth: int, batch: int, size: int) -> Callable[[], None]:
    torch.manual_seed(0)
    net, x, y = network(width, depth), torch.randn(batch, 3, size, size), torch.randint(10, (batch,))
    bayesian = method != "deterministic"
    if bayesian:
        net = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-3, variance=method))
    if quantity == "inference":
        fast = mnvi.optimize_for_inference(net.eval(), compile=False)

        def predict() -> None:
            with torch.no_grad():
                fast(x)

        return predict
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(num_samples=64), num_data=50_000, kappa=0.01)

    def train() -> None:
        loss = elbo(net(x), y, mnvi.kl_divergence(net)).loss if bayesian else F.cross_entropy(net(x), y)
        loss.backward()

    return train


def measure(varied: str, value: int, quantity: str, rounds: int) -> list[dict[str, Any]]:
    """One record for each method."""
    steps = {method: step_of(method, quantity, **{**USUAL, varied: value}) for method in METHODS}
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(rounds + 1):
        for method, step in steps.items():
            start = time.process_time()
            step()
            times[method].append((time.process_time() - start) * 1e3)
    key = {"varied": varied, "value": value, "quantity": quantity, "torch": torch.__version__}
    return [
        {
            **key,
            "method": method,
            "milliseconds": statistics.median(taken[1:]),
            "low": min(taken[1:]),
            "high": max(taken[1:]),
        }
        for method, taken in times.items()
    ]  # the first round warms up


def power(values: Sequence[float], times: Sequence[float]) -> float:
    """The least-squares slope of log time against log value: time grows as value to this power."""
    x, y = ([math.log(number) for number in numbers] for numbers in (values, times))
    return statistics.linear_regression(x, y).slope


def series(records: Sequence[dict[str, Any]], **wanted: str) -> tuple[list[int], list[float]]:
    found = sorted((r["value"], r["milliseconds"]) for r in records if wanted.items() <= r.items())
    return [value for value, _ in found], [time for _, time in found]


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """A row for each size that varies: the fitted powers, and the ratios at both ends."""
    lines = [
        "| | from – to | "
        + " | ".join(f"{title}, {label}" for title in QUANTITIES.values() for label in METHODS.values())
        + " |",
        "| --- " * (2 + len(QUANTITIES) * len(METHODS)) + "|",
    ]
    for varied, values in VARIED.items():
        cells = [_cell(records, varied, quantity, method) for quantity in QUANTITIES for method in METHODS]
        lines.append(f"| {varied} | {values[0]} – {values[-1]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(records: Sequence[dict[str, Any]], varied: str, quantity: str, method: str) -> str:
    values, times = series(records, varied=varied, quantity=quantity, method=method)
    if len(values) < 2:
        return "not run"
    _, plain = series(records, varied=varied, quantity=quantity, method="deterministic")
    ends = "" if method == "deterministic" else f" ({times[0] / plain[0]:.1f}× – {times[-1] / plain[-1]:.1f}×)"
    return f"{power(values, times):.2f}{ends}"


def draw(records: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(QUANTITIES), len(VARIED), figsize=(13, 6), squeeze=False)
    for row, (quantity, title) in enumerate(QUANTITIES.items()):
        for column, varied in enumerate(VARIED):
            axis = axes[row][column]
            for method, label in METHODS.items():
                values, times = series(records, varied=varied, quantity=quantity, method=method)
                if len(values) > 1:
                    axis.loglog(values, times, "o-", label=f"{label}: power {power(values, times):.2f}")
            axis.set_xticks(VARIED[varied], [str(value) for value in VARIED[varied]])
            axis.minorticks_off()
            axis.set_xlabel(varied)
            axis.set_ylabel(f"{title} [ms CPU]" if column == 0 else "")
            axis.grid(alpha=0.3)
            if axis.lines:
                axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vary", nargs="+", choices=list(VARIED), default=list(VARIED))
    parser.add_argument("--quantities", nargs="+", choices=list(QUANTITIES), default=list(QUANTITIES))
    parser.add_argument("--rounds", type=int, default=5, help="rounds over the methods (default: 5)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file of the figures")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = json.loads(arguments.output.read_text())["records"] if arguments.output.exists() else []
    for varied in [] if arguments.page else arguments.vary:
        for value in VARIED[varied]:
            for quantity in arguments.quantities:
                key = {"varied": varied, "value": value, "quantity": quantity, "torch": torch.__version__}
                if not any(key.items() <= record.items() for record in records):
                    records += measure(varied, value, quantity, arguments.rounds)
                    write(arguments.output, {"usual": USUAL, "records": records})  # a run that was stopped resumes
    print(markdown(records))
    if arguments.output == RESULTS:
        replace_between_marks(PAGE, "growth", markdown(records))
        draw(records, PICTURE)


if __name__ == "__main__":
    main()
