"""What factored variances cost in quality: LeNet on MNIST, trained and evaluated exactly and factored.

    python -m benchmarks.factored --mnist FOLDER            # writes benchmarks/results/factored.json; 15 minutes
    python -m benchmarks.factored --mnist FOLDER --examples 1000 --epochs 2 --seeds 0 --output mine.json
    python -m benchmarks.factored                           # shows the recorded figures

FOLDER is torchvision's; it holds MNIST/raw with the four compressed files. Networks are trained as the default study
trains LeNet, and the last epoch counts. AUROC tells how well the entropy of a prediction separates wrong predictions
from right ones. "logit variance off" is the root mean square of the logarithm of the ratio to the exact variances of
the same network. A run keeps the networks that its file already has if they were trained in the same way.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

import mnvi
from benchmarks.timing import write
from mnvi import metrics
from mnvi.posteriors import Variance

RESULTS = Path(__file__).parent / "results" / "factored.json"
ROWS: tuple[tuple[Variance, Variance], ...] = (("exact", "exact"), ("exact", "factored"), ("factored", "factored"))
TRAINED: tuple[Variance, ...] = ("exact", "factored")
FIGURES = {  # name: heading, factor, places
    "error": ("error %", 100, 2),
    "nll": ("NLL", 1, 4),
    "ece": ("ECE", 1, 4),
    "aumrc": ("AUMRC", 1, 5),
    "auroc": ("AUROC", 1, 4),
    "off": ("logit variance off %", 100, 1),
}
BATCH, LEARNING_RATE, CLIP, KAPPA_OVER_N, PRIOR_VARIANCE = 64, 1e-3, 0.1, 2e-7, 1e-3  # lenet-mnist in params.yaml
Images = tuple[Tensor, Tensor]


def digits(folder: Path, part: str, count: int) -> Images:
    """The first ``count`` images, with the training set's mean and deviation taken out, and their labels."""
    pixels, labels = (
        _bytes(folder / "MNIST" / "raw" / f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")
    )
    return (pixels[16:].view(-1, 1, 28, 28)[:count].float() / 255 - 0.1307) / 0.3081, labels[8:][:count].long()


def _bytes(path: Path) -> Tensor:
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def train(data: Images, variance: Variance, epochs: int, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    x, y = data
    net = mnvi.convert(mnvi.models.lenet(), mnvi.MultiplicativeNoise(PRIOR_VARIANCE, variance=variance))
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=len(y), kappa=KAPPA_OVER_N * len(y))
    objective = mnvi.Objective(net, elbo)
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, amsgrad=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [max(1, epochs // 2)])
    for epoch in range(epochs):
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            objective(x[rows], y[rows], epoch).loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP, math.inf)
            optimizer.step()
        schedule.step()
    return net.eval()


@torch.no_grad()
def evaluate(net: torch.nn.Module, variance: Variance, data: Images) -> dict[str, float]:
    torch.manual_seed(0)
    x, y = data
    fast, exact = (mnvi.optimize_for_inference(net, compile=False, variance=form) for form in (variance, "exact"))
    outs = [[model(part) for part in x.split(500)] for model in (fast, exact)]
    mean, var, reference = (
        torch.cat(parts) for parts in ([o.mean for o in outs[0]], [o.var for o in outs[0]], [o.var for o in outs[1]])
    )
    probs = mnvi.CategoricalLikelihood(num_samples=256).predictive(mnvi.Gaussian(mean, var)).probs
    entropy, wrong = metrics.predictive_entropy(probs), probs.argmax(1) != y
    return {
        "error": float(metrics.misclassification(probs, y)),
        "nll": float(metrics.nll(probs, y)),
        "ece": float(metrics.ece(probs, y)),
        "aumrc": float(metrics.aumrc(probs, y)),
        "auroc": float(metrics.auroc(entropy[~wrong], entropy[wrong])),
        "off": float((var / reference).log().square().mean().sqrt()),
    }


def measure(folder: Path, examples: int, epochs: int, seed: int, trained: Variance) -> list[dict]:
    """Trains one network; a record for each row of the table that is about it."""
    learnt, unseen = digits(folder, "train", examples), digits(folder, "t10k", 10_000)
    net = train(learnt, trained, epochs, seed)
    return [
        {"seed": seed, "trained": trained, "evaluated": evaluated, **evaluate(net, evaluated, unseen)}
        for evaluated in (form for one, form in ROWS if one == trained)
    ]


def markdown(document: dict) -> str:
    """Mean and standard deviation over the seeds."""
    headings = ["trained", "evaluated", *(heading for heading, _, _ in FIGURES.values())]
    lines = [f"| {' | '.join(headings)} |", "| --- " * len(headings) + "|"]
    for trained, evaluated in ROWS:
        rows = [r for r in document["records"] if (r["trained"], r["evaluated"]) == (trained, evaluated)]
        cells = []
        for name, (_, factor, places) in FIGURES.items():
            values = [row[name] * factor for row in rows]
            spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.{places}f}{spread}")
        lines.append(f"| {trained} | {evaluated} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST/raw; without it, show the recorded figures")
    parser.add_argument("--examples", type=int, default=6000, help="images to train with (default: 6000)")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file for the figures")
    arguments = parser.parse_args()
    if arguments.mnist is None:
        print(markdown(json.loads(RESULTS.read_text())))
        return
    way = {"examples": arguments.examples, "epochs": arguments.epochs}
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    records = found["records"] if way.items() <= found.items() else []
    for seed, trained in product(arguments.seeds, TRAINED):
        if all((record["seed"], record["trained"]) != (seed, trained) for record in records):
            records += measure(arguments.mnist, **way, seed=seed, trained=trained)
            write(arguments.output, {**way, "records": records})  # a stop loses one network at most
    print(markdown({"records": records}))


if __name__ == "__main__":
    main()
