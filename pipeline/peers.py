"""Gives a study's trained networks uncertainty afterwards, and scores them like cells of the study.

python -m pipeline.peers resnet20-cifar10-deterministic
python -m pipeline.peers resnet20-cifar10-deterministic --methods temperature,tuned_noise

temperature       one temperature, chosen on the validation images
laplace           last-layer Laplace, its prior precision chosen on the validation images
tuned_noise       MNVI: noise in the last layer and a temperature, chosen on the validation images
seed_ensemble     the seeds of the cell as an ensemble; needs two or more

Nothing is trained. Scores go to <results>/evaluate/<experiment>-<method>, where `python -m pipeline.report --pages`
finds them beside the study's cells.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline import cluster, console, files, params, run_statistics, tracking
from pipeline.console import progress
from pipeline.errors import StudyError
from pipeline.names import unknown
from pipeline.params import Cell, code
from pipeline.registry.methods import AFTERWARDS

if TYPE_CHECKING:
    from torch import nn

    from pipeline.images.seeds import Seed

EXAMPLES = 5000  # training images from which last-layer Laplace gets its curvature, at most


def main() -> None:
    parser = console.parser("pipeline.peers", __doc__)
    parser.add_argument("cell", help="a trained cell of the study, of images and of the method `deterministic`")
    parser.add_argument(
        "--methods",
        type=lambda names: names.split(","),
        default=list(AFTERWARDS),
        help=f"separated by commas (default: {','.join(AFTERWARDS)})",
    )
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    arguments = parser.parse_args()
    for name in arguments.methods:
        if name not in AFTERWARDS:
            raise unknown("--methods", name, AFTERWARDS, "a method for trained networks")
    cell = params.load(arguments.params).cell(arguments.cell)
    if cell.method != "deterministic" or cell.kind != "classification":
        raise StudyError(f"{cell.name}: these methods start from deterministic networks for images; name such a cell")
    cluster.configure()
    run(cell, arguments.methods)


def run(cell: Cell, methods: list[str]) -> None:
    """Scores each method on all seeds of a trained cell."""
    from pipeline.images import evaluation
    from pipeline.images import seeds as kept

    training = files.read_json(cell.model / "training.json", f"python -m pipeline.train {cell.name}")
    cell = cell.tuned()
    others = evaluation.foreign_sets(cell)
    seeds = kept.of(cell, training["seeds"], list(others))
    if len(seeds) == 1 and "seed_ensemble" in methods:
        console.say(f"{cell.name}: one seed is no ensemble; seed_ensemble is left out")
        methods = [name for name in methods if name != "seed_ensemble"]
    for method in methods:
        with progress(f"{method} {cell.name}", len(seeds), "seeds") as bar:
            found = []
            for seed in seeds:
                one = seed if method == "seed_ensemble" else _after(seed, method)
                found.append(one.evaluated(others))
                bar.advance()
        _write(cell, method, training, [_averaged(found)] if method == "seed_ensemble" else found)


def _after(seed: Seed, method: str) -> Seed:
    """A seed whose network gets uncertainty before it predicts."""
    from pipeline.images.seeds import Seed

    class After(Seed):
        def network(self) -> nn.Module:
            return _fitted(self, super().network(), method)

    after = After(seed.cell, seed.seed, seed.path.parent)
    made_of = code.of("classification", "predict", ["pipeline.peers", "mnvi.methods"])
    version = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]
    after.path = seed.path.with_name(f"{method}-{version}-{seed.path.name}")
    return after


def _fitted(seed: Seed, net: nn.Module, method: str) -> nn.Module:
    import mnvi

    validation = _batches(seed, "validation", seed.cell.study.classification.validation_examples)
    fit: dict[str, Callable[[], nn.Module]] = {
        "temperature": lambda: mnvi.methods.scale_temperature(net, validation),
        "laplace": lambda: mnvi.methods.last_layer_laplace(
            net, _batches(seed, "train", EXAMPLES), validation=validation
        ),
        "tuned_noise": lambda: mnvi.tune_noise(net, validation),
    }
    return fit[method]().eval()


def _batches(seed: Seed, part: str, most: int | None) -> list[Any]:
    """Images without augmentation, and their labels."""
    import torch

    from pipeline.data.imagesets import load_images
    from pipeline.images import job as jobs
    from pipeline.images.batches import in_order

    images = load_images(seed.cell.data, part)
    if len(images) == 0:
        raise StudyError(f"datasets.{seed.cell.dataset.name}.validation: is missing, but the methods choose by it")
    rows = torch.arange(min(most or len(images), len(images)))
    transform = jobs.transform(seed.cell, training=False)
    return [(part.images, part.labels) for part in in_order(images, rows, transform, seed.device)]


def _averaged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The predictions of an ensemble of the seeds."""

    def mean(parts: list[Any]) -> Any:
        import torch

        from mnvi.metrics import expected_entropy, mutual_information, predictive_entropy
        from pipeline.images.predictions import Predictions

        sampled = torch.stack([part.probs for part in parts])
        probs = sampled.mean(0)
        uncertainty = (predictive_entropy(probs), expected_entropy(sampled), mutual_information(sampled))
        return Predictions(probs, parts[0].labels, *uncertainty)

    return {
        "test": mean([seed["test"] for seed in found]),
        "others": {name: mean([seed["others"][name] for seed in found]) for name in found[0]["others"]},
        "damaged": {
            kind: [mean(list(parts)) for parts in zip(*(seed["damaged"][kind] for seed in found), strict=True)]
            for kind in found[0]["damaged"]
        },
        **{key: sum(seed[key] for seed in found) for key in ("milliseconds", "seconds", "parameters")},
    }


def _write(cell: Cell, method: str, training: dict[str, Any], found: list[dict[str, Any]]) -> None:
    from pipeline.images import evaluation
    from pipeline.images.curves import curves

    after = replace(cell, name=f"{cell.experiment.name}-{method}", method=method)
    with tracking.run(after, "evaluate", state=after.state("evaluate")) as tracked:
        scores = evaluation.summarised(after, training, found)
        files.write_json(after.evaluate / "scores.json", scores)
        foreign = [predictions for seed in found for predictions in seed["others"].values()]
        damaged = [seed["damaged"] for seed in found]
        files.write_json(after.plots / "curves.json", curves([seed["test"] for seed in found], foreign, damaged))
        tracked.metrics(run_statistics.flat(scores["metrics"]), step=0)
        tracked.artifact(after.evaluate / "scores.json")
    shown = {name: scores["metrics"][name]["mean"] for name in evaluation.HEADLINE}
    console.say(f"{after.name}: " + ", ".join(f"{name} {value:.4f}" for name, value in shown.items()))


if __name__ == "__main__":
    console.run(main)
