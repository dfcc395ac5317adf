"""The page of :mod:`tools.positions`, from its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, TABLE = DOCS / "positions.json", DOCS / "positions.md"
LOWEST, HIGHEST = 0.75, 1.35  # what counts as right
Records = dict[str, list[dict[str, Any]]]

_INTRODUCTION = f"""# Predicted and sampled variances

Written by `python -m tools.positions`; the top of that file says what is compared. Each figure is a median over images
and outputs, for noise of ρ = −7, −5 and −3, or for the noise that the network learnt, marked "learnt".

- `independent`, `shared_weights`: predicted variance / variance of the outputs over 300 draws of the weights. 1 is
  right; the column "right" counts what is between {LOWEST} and {HIGHEST}.
- sampling error: the standard error of the sampled variance, as a fraction of it. It is 0.08 for a Gaussian.
- quartiles: the variance of a Gaussian with the quartiles of the samples, as a fraction of their variance. Much less
  than 1 means heavy tails: a few draws make the variance, and no method that carries means and variances predicts them.
- to quartiles: predicted with `shared_weights` / the variance from the quartiles.
- scaled: predicted with `shared_weights` and the factor of `mnvi.scale_variance` / sampled. The factor comes from other
  images and other draws. In brackets, what 5 % and 95 % of the outputs and images stay below.

| network | `independent` | `shared_weights` | right | sampling error | quartiles | to quartiles | scaled |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
_TRAINING = """
What is missing after training is the covariance between channels: [trust.md](trust.md) says how much it is. One factor
brings the median back; single images and outputs stay off as the brackets show.

## Trained with each setting

Networks that end in average pooling, trained on digits 0 to 7 of scikit-learn's with MNVI and one setting, and
evaluated with a setting; digits 8 and 9 are foreign. AUROC tells how well the entropy of a prediction separates them.
Mean ± standard deviation over seeds.
"""
_HEADER = (
    "| network | trained | evaluated | seeds | accuracy | NLL | ECE | AUMRC | AUROC |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


def table(records: Records, names: list[str]) -> str:
    """The page; networks without figures are marked "not run"."""
    rows = [_row(name, records.get(name, [])) for name in names]
    return _INTRODUCTION + "\n".join(rows) + "\n" + _TRAINING + "\n" + _training(records)


def _row(name: str, found: list[dict[str, Any]]) -> str:
    if not found:
        return f"| {name} | not run | not run | | | | | |"
    right = sum(LOWEST <= record["shared_weights"] <= HIGHEST for record in found)
    learnt = " (learnt)" if found[0]["rho"] == "learnt" else ""
    accuracy = f", accuracy {found[0]['accuracy']:.2f}" if "accuracy" in found[0] else ""
    columns = [
        " / ".join(f"{record[key]:.2f}" for record in found)
        for key in ("independent", "shared_weights", "sampling_error", "quartiles", "shared_weights_to_quartiles")
    ]
    verdict = "yes" if right == len(found) else "no" if right == 0 else f"{right} of {len(found)}"
    figures = " | ".join(columns[2:])
    return f"| {name}{accuracy}{learnt} | {columns[0]} | {columns[1]} | {verdict} | {figures} | {_scaled(found)} |"


def _scaled(found: list[dict[str, Any]]) -> str:
    if not all("scaled" in record for record in found):
        return "not run"
    return " / ".join("{:.2f} ({:.2f} to {:.2f})".format(r["scaled"], *r["scaled_range"]) for r in found)


def _training(records: Records) -> str:
    lines = []
    for name in ("all-convolutional", "resnet20"):
        found = records.get(f"training {name}", [])
        for pair in dict.fromkeys((r["trained"], r["evaluated"]) for r in found):
            rows = [r for r in found if (r["trained"], r["evaluated"]) == pair]
            cells = [_mean([r[metric] for r in rows]) for metric in ("accuracy", "nll", "ece", "aumrc", "auroc")]
            lines.append(f"| {name} | `{pair[0]}` | `{pair[1]}` | {len(rows)} | {' | '.join(cells)} |")
        if not found:
            lines.append(f"| {name} | not run | | | | | | | |")
    return _HEADER + "\n".join(lines) + "\n"


def _mean(values: list[float]) -> str:
    figures = torch.tensor(values, dtype=torch.float64)
    return f"{figures.mean():.4f} ± {figures.std():.4f}"
