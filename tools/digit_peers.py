"""Compares the methods for a trained network on scikit-learn's digits, and writes the table of docs/guide.md.

    python -m tools.digit_peers            # eight runs, three minutes on one core

A network of 64-50-50-10 units learns 300 digits by heart. Methods tune on 400 others, conformal sets calibrate on 400
more, and all are tested on the remaining 697. Each run has another split and another start. Figures go to
docs/digit_peers.json; the page shows them between two marks.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import mnvi
from mnvi.likelihoods._noted import noted
from tools.writing import write

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, PAGE = DOCS / "digit_peers.json", DOCS / "guide.md"
BEGIN, END = "<!-- made by python -m tools.digit_peers -->", "<!-- end of digit_peers -->"
RUNS = 8
PARTS = (300, 400, 400, 697)  # to train, to tune, to calibrate, to test
COVERAGE = 0.97  # above the share of right predictions, so that some sets need a second class
COLUMNS = {
    "error": ("error", 100, 1, " %"),
    "nll": ("NLL", 1, 3, ""),
    "ece": ("ECE", 1, 3, ""),
    "aumrc": ("AUMRC", 1, 4, ""),
    "coverage": ("conformal sets hold", 100, 1, " %"),
    "size": ("classes in a set", 1, 2, ""),
}

Data = tuple[Tensor, Tensor]


def split(seed: int) -> list[Data]:
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(digits)[order]
    return list(zip(x.split(PARTS), y.split(PARTS), strict=True))


def network(train: Data) -> nn.Module:
    """A network that fits its training data perfectly, and is far too sure of itself."""
    net = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(train[0]), train[1]).backward()
        optimizer.step()
    return net


def finetuned(net: nn.Module, train: Data, tune: Data) -> nn.Module:
    noisy = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-2, init_rho=-7.0))
    mnvi.fit(noisy, train, validation=tune, epochs=30, learning_rate=1e-3, progress=False)
    return mnvi.methods.scale_temperature(noisy, tune)


METHODS: dict[str, Callable[[nn.Module, Data, Data], nn.Module]] = {
    "the network itself": lambda net, train, tune: net,
    "`scale_temperature`": lambda net, train, tune: mnvi.methods.scale_temperature(net, tune),
    "`tune_noise`": lambda net, train, tune: mnvi.tune_noise(net, tune),
    '`tune_noise(learn="elbo")`': lambda net, train, tune: mnvi.tune_noise(net, tune, learn="elbo"),
    "`last_layer_laplace`": lambda net, train, tune: mnvi.methods.last_layer_laplace(net, train, validation=tune),
    "`variational_last_layer`": lambda net, train, tune: mnvi.methods.variational_last_layer(net, train),
    "all layers fine-tuned, then a temperature": finetuned,
    "five networks, `Ensemble`": lambda net, train, tune: mnvi.Ensemble([net, *(network(train) for _ in range(4))]),
}


def measured(model: nn.Module, calibrate: Data, test: Data) -> dict[str, float]:
    likelihood = noted(model) or mnvi.CategoricalLikelihood()
    predicted = mnvi.predict(model, test[0], likelihood=likelihood)
    known = mnvi.predict(model, calibrate[0], likelihood=likelihood).distribution
    sets = mnvi.methods.Conformal(known, calibrate[1], COVERAGE).sets(predicted.distribution)
    metrics = mnvi.metrics
    return {
        "error": float(metrics.misclassification(predicted.probs, test[1])),
        "nll": float(metrics.nll(predicted.probs, test[1])),
        "ece": float(metrics.ece(predicted.probs, test[1])),
        "aumrc": float(metrics.aumrc(predicted.probs, test[1])),
        "coverage": float(sets.gather(1, test[1][:, None]).double().mean()),
        "size": float(sets.sum(1).double().mean()),
    }


def run(seed: int) -> dict[str, dict[str, float]]:
    train, tune, calibrate, test = split(seed)
    torch.manual_seed(seed)
    net = network(train).eval()
    return {name: measured(make(net, train, tune), calibrate, test) for name, make in METHODS.items()}


def table(runs: list[dict[str, dict[str, float]]]) -> str:
    lines = [
        "| method | " + " | ".join(title for title, *_ in COLUMNS.values()) + " |",
        "| --- " * (len(COLUMNS) + 1) + "|",
    ]
    for name in METHODS:
        cells = []
        for key, (_, factor, digits, unit) in COLUMNS.items():
            values = [factor * one[name][key] for one in runs]
            cells.append(f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}{unit}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(text: str, runs: list[dict[str, dict[str, float]]]) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(runs)}\n\n{END}{after}"


def main() -> None:
    runs = []
    for seed in range(RUNS):
        runs.append(run(seed))
        print(seed, {name: round(found["nll"], 4) for name, found in runs[-1].items()}, flush=True)
    write(RECORDS, json.dumps(runs, indent=1) + "\n")
    write(PAGE, page(PAGE.read_text(), runs))


if __name__ == "__main__":
    main()
