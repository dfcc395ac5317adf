"""What the figures of docs/photos.json say, in sentences. A sentence stands only where the figures bear it out."""

from __future__ import annotations

import statistics
from typing import Any

Found = dict[str, Any]
"""Scores of a method, and what it chose on each half."""
FOREIGN = ("textures", "digits")
FREE = 0.002  # a difference in NLL that does not matter
LOWER_IS_BETTER = {"ece": "ECE", "aumrc": "AUMRC"}


def remarks(methods: dict[str, Found], labels: dict[str, str]) -> list[list[str]]:
    """Sentences of each paragraph."""
    if not {"plain", "temperature"} <= set(methods):
        return []
    everywhere = [_everywhere(labels[name], found, methods) for name, found in methods.items() if "noise_" in name]
    return [[*_sureness(methods), *_last_layer(methods), *_price(methods)], *everywhere]


def start_remarks(heads: list[Found]) -> list[str]:
    """Sentences about starts of the noise, of which the first is none."""
    plain, noisy = heads[0], heads[1:]
    free = [head for head in noisy if head["nll"] <= plain["nll"] + FREE]
    sentences = list[str]()
    if free:
        highest = max(free, key=lambda head: head["rho"])
        share = 100 * highest["epistemic"]
        sentences.append(
            f"Noise in the last layer costs less than {FREE} of NLL up to ρ = {highest['rho']:g}, where {share:.1f} % "
            "of the entropy is epistemic."
        )
    better = [head for head in noisy for name in FOREIGN if head[f"auroc_epistemic_{name}"] > head[f"auroc_{name}"]]
    if not better:
        sentences.append(
            "From every start the entropy tells foreign pictures better than the epistemic part alone, so use the "
            "entropy (`prediction.total`) to refer photographs to a person."
        )
    return sentences


def nll_difference(found: Found, other: Found) -> tuple[float, float]:
    """Mean difference of the negative log-likelihood of each photograph, and its standard error."""
    pairs = zip(found["log_probs"], other["log_probs"], strict=True)
    differences = [theirs - ours for ours, theirs in pairs]
    return statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5


def _sureness(methods: dict[str, Found]) -> list[str]:
    temperatures = [fold["temperature"] for fold in methods["temperature"]["folds"]]
    if min(temperatures) > 1:
        return ["This network is too sure of itself: the best temperature is above 1."]
    if max(temperatures) >= 1:
        return []
    sentences = [
        "This network is too unsure rather than too sure: the best temperature is below 1. Noise and Laplace can only "
        "soften predictions."
    ]
    if "laplace" in methods and abs(methods["laplace"]["nll"] - methods["plain"]["nll"]) < 1e-3:
        precision = min(fold["precision"] for fold in methods["laplace"]["folds"])
        sentences.append(f"So Laplace takes a prior precision of {precision:g}, which leaves the network as it is.")
    if "noise" in methods and all(
        ours["temperature"] < theirs for ours, theirs in zip(methods["noise"]["folds"], temperatures, strict=True)
    ):
        sentences.append(
            "Noise comes with a lower temperature instead: a sharper centre and longer tails than a temperature alone "
            "has."
        )
    return sentences


def _last_layer(methods: dict[str, Found]) -> list[str]:
    if "noise" not in methods:
        return []
    found = methods["noise"]
    parts = {name: _auroc(found, f"epistemic_{name}") for name in FOREIGN}
    whole = {name: _auroc(found, name) for name in FOREIGN}
    said = " and ".join(f"{name} with an AUROC of {value:.3f}" for name, value in parts.items())
    better = [name for name in FOREIGN if parts[name] > whole[name]]
    verdict = f"for {' and '.join(better)} better than the whole entropy" if better else "the whole entropy is better"
    return [f"Noise adds an epistemic part. Taken by itself, that part tells {said}: {verdict}."]


def _price(methods: dict[str, Found]) -> list[str]:
    plain, tempered = methods["plain"], methods["temperature"]
    worse = [name for name in FOREIGN if _auroc(tempered, name) < _auroc(plain, name) - 0.01]
    return [f"A temperature tells {' and '.join(worse)} less well than the plain network does."] if worse else []


def _everywhere(label: str, found: Found, methods: dict[str, Found]) -> list[str]:
    """About noise in all layers, beside a temperature and noise in the last layer."""
    tempered = methods["temperature"]
    chosen = " and ".join(f"{fold['rho']:g}" for fold in found["folds"])
    sentences = [
        f"{label}: the halves chose ρ = {chosen}, which changes {100 * (1 - found['kept']):.0f} % of the classes."
    ]
    difference, error = nll_difference(found, tempered)
    better, worse = list[str](), list[str]()
    if abs(difference) > 2 * error:
        (better if difference < 0 else worse).append("NLL")
    for name, said in LOWER_IS_BETTER.items():
        (better if found[name] < tempered[name] else worse).append(said)
    for name in FOREIGN:
        (better if _auroc(found, name) > _auroc(tempered, name) else worse).append(f"AUROC of {name}")
    verdict = [f"{_listed(names)} {how}" for names, how in ((better, "better"), (worse, "worse")) if names]
    sentences.append(f"Beside a temperature: {'; '.join(verdict)}.")
    if "noise" in methods and worse:
        sentences.append("So noise in the last layer, which keeps nearly all classes, stays the recipe.")
    return sentences


def _auroc(found: Found, name: str) -> float:
    return statistics.mean(fold[f"auroc_{name}"] for fold in found["folds"])


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
