"""Measures what each assumption of the rules costs, against sampled weights, and writes the table of docs/trust.md.

    python -m tools.trust_table            # all cases, about five minutes on one core
    python -m tools.trust_table "LeNet"    # cases whose name contains this

Networks have torch's random weights, batch norms the statistics of a batch, inputs are standard normal. Every layer has
multiplicative noise with the same ρ. The figures are those of `mnvi.compare_with_sampling` for the output: the median
ratio of predicted to sampled standard deviation, and how far the mean is off, in sampled standard deviations. They go
to docs/trust.json; the page shows them between two marks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mnvi
from tools.writing import write

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, PAGE = DOCS / "trust.json", DOCS / "trust.md"
BEGIN, END = "<!-- made by python -m tools.trust_table -->", "<!-- end -->"
RHOS = (-3.0, -5.0)
SAMPLES = 300


@dataclass
class Case:
    """A network in which one assumption shows.

    Attributes:
        assumption: what the rules take for granted there.
        build: makes the network.
        shape: of one input.
        options: for ``mnvi.options``.
    """

    assumption: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return x + self.second(torch.relu(self.first(self.norm(x))))


class Tokens(nn.Module):
    """A transformer, read at its first token or averaged over all."""

    def __init__(self, average: bool) -> None:
        super().__init__()
        self.inside = nn.Linear(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.average = nn.Linear(32, 10), average

    def forward(self, x: Any) -> Any:
        x = self.encoder(self.inside(x))
        return self.head(torch.mean(x, 1) if self.average else x[:, 0])


def perceptron(hidden: int, activation: Callable[[], nn.Module], *, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for number in range(hidden):
        layers += [nn.Linear(20 if number == 0 else 64, 64), *([nn.LayerNorm(64)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def convolutions(last: nn.Module, features: int) -> nn.Module:
    body = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*body, last, nn.Flatten(), nn.Linear(features, 10))


def _flat() -> nn.Module:
    return convolutions(nn.Identity(), 16 * 64)


def _averaged() -> nn.Module:
    return convolutions(nn.AdaptiveAvgPool2d(1), 16)


_SHARED = {"spatial": "shared_weights"}
_POSITIONS = "Positions are independent, although they share weights"
_CARRIED = "One covariance stands for all pairs of positions of a channel"
_UNITS = "Units of a layer are independent given the layer before"
CASES = {
    "one linear layer": Case("None: exact", lambda: nn.Linear(20, 10), (20,)),
    "2 hidden layers, ReLU": Case(_UNITS, lambda: perceptron(2, nn.ReLU), (20,)),
    "8 hidden layers, ReLU": Case(_UNITS, lambda: perceptron(8, nn.ReLU), (20,)),
    "2 hidden layers, GELU": Case(_UNITS, lambda: perceptron(2, nn.GELU), (20,)),
    "2 hidden layers, tanh": Case(_UNITS, lambda: perceptron(2, nn.Tanh), (20,)),
    "2 hidden layers, tanh, first order": Case(
        "Activations are linear around the mean", lambda: perceptron(2, nn.Tanh), (20,), {"activation": "taylor"}
    ),
    "2 hidden layers, LayerNorm": Case(
        "A norm's statistics are independent of its entries", lambda: perceptron(2, nn.ReLU, norm=True), (20,)
    ),
    "4 residual blocks": Case(
        "The two sides of a sum are independent",
        lambda: nn.Sequential(nn.Linear(20, 64), *(Residual(64) for _ in range(4)), nn.Linear(64, 10)),
        (20,),
    ),
    "LeNet": Case("A maximum is the entry with the largest mean", mnvi.models.lenet, (1, 28, 28)),
    "LeNet, Clark's maximum": Case(
        "A maximum of Gaussians is Gaussian", mnvi.models.lenet, (1, 28, 28), {"max_pool": "clark"}
    ),
    "convolutions, flattened": Case(_POSITIONS, _flat, (3, 8, 8)),
    "convolutions, averaged": Case(_POSITIONS, _averaged, (3, 8, 8)),
    "convolutions, averaged, shared": Case(_CARRIED, _averaged, (3, 8, 8), _SHARED),
    "AllCNN": Case(_POSITIONS, mnvi.models.all_cnn, (3, 16, 16)),
    "AllCNN, shared": Case(_CARRIED, mnvi.models.all_cnn, (3, 16, 16), _SHARED),
    "ResNet20": Case(_POSITIONS, lambda: mnvi.models.resnet20(10), (3, 16, 16)),
    "ResNet20, shared": Case(_CARRIED, lambda: mnvi.models.resnet20(10), (3, 16, 16), _SHARED),
    "transformer, first token": Case(
        "Queries, keys and values are independent", lambda: Tokens(average=False), (6, 16)
    ),
    "transformer, averaged": Case("Tokens are independent, although they share weights", lambda: Tokens(True), (6, 16)),
    "transformer, averaged, shared": Case(_CARRIED, lambda: Tokens(average=True), (6, 16), _SHARED),
}


def measure(case: Case, rho: float, num_samples: int = SAMPLES) -> dict[str, float]:
    torch.manual_seed(0)
    net, x = case.build(), torch.randn(8, *case.shape)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a running mean over all batches, so that one batch is enough
    with torch.no_grad():
        net.train()(x)
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0, init_rho=rho)).eval()
    with mnvi.options(**case.options):
        compared = mnvi.compare_with_sampling(bayesian, x, num_samples, generator=torch.Generator().manual_seed(1))
    row = compared.output.row()
    return {key: round(row[key], 4) for key in ("std_ratio_median", "std_ratio_low", "std_ratio_high", "mean_off_stds")}


def table(records: dict[str, dict[str, dict[str, float]]]) -> str:
    heads = ["network", "assumption that shows here"]
    for rho in RHOS:
        heads += [f"ratio, ρ = {rho:g}", f"mean off, ρ = {rho:g}"]
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for name, case in CASES.items():
        cells = [name, case.assumption]
        for rho in RHOS:
            found = records[name][f"{rho:g}"]
            span = f"{found['std_ratio_low']:.2f} to {found['std_ratio_high']:.2f}"
            cells += [f"{found['std_ratio_median']:.2f} ({span})", f"{found['mean_off_stds']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(text: str, records: dict[str, dict[str, dict[str, float]]]) -> str:
    """The page with a table made from these records."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(records)}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of the names of cases; default: all")
    wanted = parser.parse_args().names
    records: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for name, case in CASES.items():
        if not wanted or any(part in name for part in wanted):
            records[name] = {f"{rho:g}": measure(case, rho) for rho in RHOS}
            print(name, {rho: found["std_ratio_median"] for rho, found in records[name].items()}, flush=True)
    records = {name: records[name] for name in CASES if name in records}
    write(RECORDS, json.dumps(records, indent=1) + "\n")
    if len(records) == len(CASES):
        write(PAGE, page(PAGE.read_text(), records))


if __name__ == "__main__":
    main()
