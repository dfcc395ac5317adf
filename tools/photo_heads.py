"""What the start of the noise does to a last layer that learns photographs' classes from the features below it.

    python -m tools.photo_heads      # a minute, once the weights are fetched

The features are those of EfficientNet-lite0, the classes the ten of Imagenette. Prior and κ/N are those of the recipe
`photographs` in params.yaml. Figures go to docs/photos.json, the table to docs/photos.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mnvi
from pipeline.params.reading import parse
from tools.photo_data import CLASSES, Photos
from tools.photos import Subject, record, recorded

STARTS = (None, -9.0, -3.0, -1.0, 1.0, 3.0)  # None: no noise
SEEDS, EPOCHS = 3, 30


def measured(start: float | None, data: dict[str, Photos], recipe: dict[str, Any]) -> dict[str, float]:
    """Scores of a last layer whose noise starts at `start`: means over seeds."""
    found = [dict(_scores(_trained(start, data["train"], recipe, seed), data)) for seed in range(SEEDS)]
    return {name: statistics.mean(one[name] for one in found) for name in found[0]}


def _trained(start: float | None, train: Photos, recipe: dict[str, Any], seed: int) -> mnvi.training.Fitted:
    given = recipe["hyperparameters"]
    torch.manual_seed(seed)
    last: nn.Module = nn.Linear(train.x.shape[1], len(CLASSES))
    if start is not None:
        last = mnvi.convert(last, mnvi.MultiplicativeNoise(given["prior_variance"], init_rho=start))
    return mnvi.fit(
        last,
        train,
        epochs=EPOCHS,
        batch_size=recipe["batch_size"],
        kappa=given["kappa_over_n"] * len(train.y),
        progress=False,
    )


def _scores(fitted: mnvi.training.Fitted, data: dict[str, Photos]) -> Iterator[tuple[str, float]]:
    known = mnvi.predict(fitted, data["test"].x)
    yield from mnvi.evaluate(fitted, data["test"]).items()
    yield "epistemic", float(known.epistemic.mean() / known.total.mean())
    for name in ("textures", "digits"):
        foreign = mnvi.predict(fitted, data[name].x)
        yield f"auroc_{name}", float(mnvi.metrics.auroc(known.total, foreign.total))
        if known.epistemic.any():
            yield f"auroc_epistemic_{name}", float(mnvi.metrics.auroc(known.epistemic, foreign.epistemic))


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    subject = Subject("imagenette-subset")
    places = {place: row for row, place in enumerate(CLASSES.values())}
    with torch.no_grad():
        data = {name: subject.data(name, whole=False) for name in subject.pictures}
    for name in ("train", "test"):
        data[name] = Photos(data[name].x, torch.tensor([places[int(place)] for place in data[name].y]))
    recipe = parse(Path("params.yaml"))["recipes"]["photographs"]
    heads = []
    for start in STARTS:
        heads.append({"rho": start, **measured(start, data, recipe)})
        print({name: None if value is None else round(value, 4) for name, value in heads[-1].items()}, flush=True)
    record(subject, {**recorded(), "heads": heads})


if __name__ == "__main__":
    main()
