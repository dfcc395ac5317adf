"""Data of the report's curves and histograms of a cell's predictions, over all its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import mnvi
from pipeline.images.predictions import Predictions
from pipeline.registry.metrics import BINS, measured

POINTS = 101  # of the rejection curve
KINDS = ("total", "aleatoric", "epistemic")


def curves(
    seeds: Sequence[Predictions], others: Sequence[Predictions], damaged: Sequence[dict[str, list[Predictions]]] = ()
) -> dict[str, Any]:
    """The curves of a cell.

    Args:
        seeds: predictions on test images, one entry per seed.
        others: predictions on foreign images.
        damaged: for each seed the predictions on damaged test images: for each kind of damage one for each severity.
    """
    return {
        "reliability": _reliability(seeds),
        "rejection": _rejection(seeds),
        "uncertainty": {kind: _histograms(kind, seeds, others) for kind in KINDS},
        **({"severity": _severity(seeds, damaged)} if any(damaged) else {}),
    }


def _reliability(seeds: Sequence[Predictions]) -> dict[str, list[float | None]]:
    probs, labels = torch.cat([seed.probs for seed in seeds]), torch.cat([seed.labels for seed in seeds])
    bins = mnvi.metrics.reliability(probs, labels, BINS)
    return {
        "confidence": _without_nan(bins.confidence),
        "accuracy": _without_nan(bins.accuracy),
        "count": bins.counts.tolist(),
    }


def _rejection(seeds: Sequence[Predictions]) -> dict[str, list[float]]:
    found = [mnvi.metrics.rejection_curve(seed.probs, seed.labels) for seed in seeds]
    number = len(found[0].error)
    rows = torch.linspace(0, number - 1, min(POINTS, number)).round().long()
    error = torch.stack([curve.error for curve in found]).mean(0)
    return {"rate": found[0].rejected[rows].tolist(), "misclassification": error[rows].tolist()}


def _severity(
    seeds: Sequence[Predictions], damaged: Sequence[dict[str, list[Predictions]]]
) -> dict[str, dict[str, list[float]]]:
    """Metrics against severity, for each kind of damage; severity 0 is the same images without damage."""
    found: dict[str, dict[str, list[float]]] = {}
    for metric in measured("classification"):
        found[metric.name] = {}
        for kind in damaged[0]:
            rows = [
                [metric.measure(one.probs, one.labels) for one in (_first(seed, severities[0]), *severities)]
                for seed, severities in zip(seeds, (seed[kind] for seed in damaged), strict=True)
            ]
            found[metric.name][kind] = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
    return found


def _first(whole: Predictions, like: Predictions) -> Predictions:
    """The predictions for as many test images as ``like`` has; damaged are the first ones."""
    return Predictions(*(tensor[: len(like.labels)] for tensor in whole.tensors().values()))


def _histograms(kind: str, seeds: Sequence[Predictions], others: Sequence[Predictions]) -> dict[str, list[float]]:
    known = torch.cat([getattr(seed, kind) for seed in seeds])
    wrong = torch.cat([seed.wrong for seed in seeds])
    foreign = torch.cat([getattr(seed, kind) for seed in others]) if others else known.new_empty(0)
    highest = max(float(torch.cat([known, foreign]).max()), 1e-6)
    edges = torch.linspace(0, highest, BINS + 1, dtype=torch.float64)

    def counts(values: Tensor) -> list[float]:
        return values.double().histogram(edges).hist.tolist()

    return {
        "edges": edges.tolist(),
        "correct": counts(known[~wrong]),
        "wrong": counts(known[wrong]),
        "ood": counts(foreign),
    }


def _without_nan(values: Tensor) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
