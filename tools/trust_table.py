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
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mnvi
from tools.trust_networks import CASES, Case
from tools.writing import write

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, PAGE = DOCS / "trust.json", DOCS / "trust.md"
BEGIN, END = "<!-- made by python -m tools.trust_table -->", "<!-- end -->"
RHOS = (-3.0, -5.0)
SAMPLES = 300


def measure(case: Case, rho: float, num_samples: int = SAMPLES) -> dict[str, float]:
    torch.manual_seed(0)
    net, x = case.build(), case.example(torch.randn(8, *case.shape))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a running mean over all batches, so that one batch is enough
    with torch.no_grad():
        net.train()(x)
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0, init_rho=rho, **case.noise)).eval()
    with mnvi.options(**case.options), warnings.catch_warnings():
        warnings.simplefilter("ignore", mnvi.DependenceWarning)  # some cases measure what it warns of
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
