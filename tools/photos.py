"""Uncertainty for a network trained on ImageNet, chosen on photographs: noise, temperature, Laplace side by side.

    python -m tools.photos                          # all methods; goes on after an interruption
    python -m tools.photos plain temperature        # some of them
    python -m tools.photos --photos FOLDER          # with FOLDER/val and FOLDER/train instead of the mirror's
    python -m tools.photos --times                  # time that one core takes for a photograph

EfficientNet-lite0 classifies photographs of ten ImageNet classes among all 1,000. A method chooses its one or two
numbers on half of ImageNet's validation photographs of these classes and is tested on the other half, and the other way
round. Last-layer Laplace also gets its curvature from ImageNet's training photographs. Figures go to docs/photos.json,
the table to docs/photos.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import mnvi
from pipeline.data import released_weights
from pipeline.data.sources import CACHE
from tools import photo_data
from tools.photo_data import Photos
from tools.photo_page import RECORDS, TABLE, page
from tools.writing import write

RHOS = (-9.0, -7.0, -6.0)  # for noise in all layers: each value takes a pass over the photographs
BATCH = 16
TIMED, TIMED_PHOTOS = 5, 4  # batches, and photographs in each


class Method(NamedTuple):
    """A method for a trained network.

    Attributes:
        label: in the table.
        fit: from the network, photographs to choose on and training photographs to a network with uncertainty.
        whole: whether it needs the whole network; the others change the last layer alone and get its features.
        spatial: the setting of `mnvi.options`.
    """

    label: str
    fit: Callable[[nn.Module, Photos, Photos], nn.Module]
    whole: bool = False
    spatial: str = "independent"


def everywhere(variance: Any) -> Callable[[nn.Module, Photos, Photos], nn.Module]:
    """Noise in all layers, one number for all of them."""

    def fit(net: nn.Module, tune: Photos, _: Photos) -> nn.Module:
        noise = mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=-20.0, variance=variance)
        return mnvi.tune_noise(mnvi.convert(net, noise), tune.batches(BATCH), rhos=RHOS)

    return fit


METHODS = {
    "plain": Method("the network as it is", lambda net, tune, train: net),
    "temperature": Method(
        "temperature scaling", lambda net, tune, train: mnvi.methods.scale_temperature(net, tune.batches())
    ),
    "laplace": Method(
        "last-layer Laplace",
        lambda net, tune, train: mnvi.methods.last_layer_laplace(net, train.batches(), validation=tune.batches()),
    ),
    "noise": Method("MNVI, noise in the last layer", lambda net, tune, train: mnvi.tune_noise(net, tune.batches())),
    "noise_all": Method("MNVI, noise in all layers, exact", everywhere("exact"), whole=True),
    "noise_factored": Method("MNVI, noise in all layers, factored", everywhere("factored"), whole=True),
    "noise_shared": Method(
        "MNVI, noise in all layers, shared weights", everywhere("exact"), whole=True, spatial="shared_weights"
    ),
}


class Subject:
    """The network, the photographs, and the features that its last layer gets of each."""

    def __init__(self, folder: str) -> None:
        self.net = mnvi.models.efficientnet_lite0(weights=released_weights.find("efficientnet-lite0")).eval()
        self.last = self.net.fc
        self.pictures = {
            "test": photo_data.photographs("val", folder),
            "train": photo_data.photographs("train", folder),
        }
        for name, found in (("textures", photo_data.textures(CACHE)), ("digits", photo_data.digits(CACHE))):
            self.pictures[name] = Photos(found, torch.zeros(len(found), dtype=torch.long))
        self._features: dict[str, Photos] = {}

    def data(self, name: str, whole: bool) -> Photos:
        if whole:
            return self.pictures[name]
        if name not in self._features:
            body = nn.Sequential(*[part for name, part in self.net.named_children() if name != "fc"])
            x = torch.cat([body(part) for part, _ in self.pictures[name].batches(BATCH)])
            self._features[name] = Photos(x, self.pictures[name].y)
        return self._features[name]


@torch.no_grad()
def measure(subject: Subject, method: Method) -> dict[str, Any]:
    """Scores on all photographs, each predicted by the network whose numbers were chosen on the other half."""
    net = subject.net if method.whole else subject.last
    test = subject.data("test", method.whole)
    even, odd = torch.arange(0, len(test.y), 2), torch.arange(1, len(test.y), 2)  # half of each class
    train = subject.data("train", whole=False)
    probs = torch.zeros(len(test.y), subject.last.out_features)
    folds = []
    with mnvi.options(spatial=method.spatial):
        for tune, rows in ((even, odd), (odd, even)):
            started = time.perf_counter()
            fitted = method.fit(net, test.part(tune), train).eval()
            seconds = time.perf_counter() - started
            known = predict(fitted, test.part(rows))
            assert known.probs is not None
            probs[rows] = known.probs
            fold = {**chosen(fitted), "seconds": round(seconds, 1)}
            for name in ("textures", "digits"):
                foreign = predict(fitted, subject.data(name, method.whole))
                fold[f"auroc_{name}"] = float(mnvi.metrics.auroc(known.total, foreign.total))
                if known.epistemic.any():
                    fold[f"auroc_epistemic_{name}"] = float(mnvi.metrics.auroc(known.epistemic, foreign.epistemic))
            folds.append(fold)
    plain = subject.last(subject.data("test", whole=False).x)
    return {
        **scores(probs, test.y),
        "kept": float((plain.argmax(1) == probs.argmax(1)).double().mean()),
        "folds": folds,
    }


def predict(net: nn.Module, photos: Photos) -> mnvi.training.Prediction:
    likelihood = mnvi.CategoricalLikelihood() if type(net) is nn.Linear else None  # the others bring theirs
    return mnvi.predict(net, photos.x, likelihood=likelihood, batch_size=BATCH)


def chosen(net: nn.Module) -> dict[str, float]:
    """The numbers that a method has chosen."""
    if isinstance(net, mnvi.methods.TunedNoise):
        return {"rho": net.tuning.rho, "temperature": net.tuning.temperature}
    if isinstance(net, mnvi.methods.Tempered):
        return {"temperature": float(net.temperature)}
    return {"precision": float(net.precision)} if hasattr(net, "precision") else {}


def scores(probs: Tensor, y: Tensor) -> dict[str, Any]:
    found = {name: getattr(mnvi.metrics, name) for name in ("nll", "ece", "aumrc", "brier")}
    log_probs = probs.double().gather(1, y[:, None]).log().flatten()
    return {
        "accuracy": 1 - float(mnvi.metrics.misclassification(probs, y)),
        **{name: float(score(probs, y)) for name, score in found.items()},
        "log_probs": [round(value, 4) for value in log_probs.tolist()],
    }


def medians(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median time that each run computes on one core, in milliseconds; what else the machine does hardly matters.

    The runs take turns, so that a machine that is slower for a while slows all of them.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(1 + TIMED):
        for name, run in runs.items():
            started = time.process_time()
            run()
            if turn:  # the first one warms up
                found[name].append(1000 * (time.process_time() - started))
    return {name: statistics.median(values) for name, values in found.items()}


def times(subject: Subject) -> dict[str, Any]:
    """Milliseconds of one core per photograph, with folded batch norms and without a compiler."""
    torch.set_num_threads(1)
    x = subject.pictures["test"].x[:TIMED_PHOTOS]
    generator = torch.Generator().manual_seed(0)
    train = Photos(torch.rand(64, 1280, generator=generator), torch.randint(1000, (64,), generator=generator))

    def build(name: str) -> nn.Module:
        if METHODS[name].whole:
            noise = mnvi.MultiplicativeNoise(1.0, init_rho=-7.0, variance="factored" if "factored" in name else "exact")
            return mnvi.convert(subject.net, noise)
        fitted = METHODS[name].fit(subject.last, train, train)
        return nn.Sequential(*[part for name, part in subject.net.named_children() if name != "fc"], fitted)

    def run(name: str) -> Callable[[], Any]:
        fast = mnvi.optimize_for_inference(build(name).eval(), compile=False)

        @torch.no_grad()
        def predict() -> None:
            with mnvi.options(spatial=METHODS[name].spatial):
                fast(x)

        return predict

    found = {name: round(total / len(x), 2) for name, total in medians({name: run(name) for name in METHODS}).items()}
    for name, one in found.items():
        print(f"{name:16} {one:.1f} ms per photograph", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help=f"of {', '.join(METHODS)}; default: those not in {RECORDS.name}")
    parser.add_argument(
        "--photos", default="imagenette-subset", help="folder with val and train (default: %(default)s)"
    )
    parser.add_argument("--times", action="store_true", help="measure the time per photograph instead")
    parser.add_argument("--again", action="store_true", help="also run methods whose figures are there already")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.methods if name not in METHODS]
    if unknown:
        parser.error(f"{unknown[0]}: no such method; choose from {', '.join(METHODS)}")
    done = [] if arguments.again else list(recorded()["methods"])
    subject = Subject(arguments.photos)
    if arguments.times:
        record(subject, {"milliseconds": times(subject)})
        return
    for name in arguments.methods or [name for name in METHODS if name not in done]:
        found = measure(subject, METHODS[name])
        print(f"{name:16} NLL {found['nll']:.4f}, ECE {found['ece']:.4f}, {found['folds']}", flush=True)
        record(subject, {"methods": {**recorded()["methods"], name: found}})


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {"methods": {}}
    return found


def record(subject: Subject, new: dict[str, Any]) -> None:
    """Adds figures to those on disk, which another process may have written meanwhile, and writes the page."""
    records = {**recorded(), "photos": {name: len(found.y) for name, found in subject.pictures.items()}, **new}
    records["methods"] = {name: records["methods"][name] for name in METHODS if name in records["methods"]}
    write(RECORDS, json.dumps(records, indent=1) + "\n")
    write(TABLE, page(records, {name: method.label for name, method in METHODS.items()}))


if __name__ == "__main__":
    main()
