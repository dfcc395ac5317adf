"""What factored variances cost in quality: LeNet on MNIST, trained and evaluated exactly and factored.

    python -m benchmarks.factored --mnist FOLDER            # writes benchmarks/results/factored.json
    python -m benchmarks.factored --mnist FOLDER --examples 1000 --epochs 2 --seeds 1 --output mine.json

FOLDER is torchvision's; it holds MNIST/raw with the four compressed files. AUROC tells how well the entropy of a
prediction separates wrong predictions from right ones. "logit variance off" is the root mean square of the logarithm of
the ratio to the exact variances of the same network.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from pathlib import Path

import torch
from torch import Tensor

import mnvi
from benchmarks.timing import write
from mnvi import metrics
from mnvi.posteriors import Variance

RESULTS = Path(__file__).parent / "results" / "factored.json"
ROWS: tuple[tuple[Variance, Variance], ...] = (("exact", "exact"), ("exact", "factored"), ("factored", "factored"))
FIGURES = ("error", "nll", "ece", "auroc", "off")
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
    net = mnvi.convert(mnvi.models.lenet(), mnvi.MultiplicativeNoise(prior_variance=1e-3, variance=variance))
    objective = mnvi.Objective(net, mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=len(y), kappa=0.01))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [max(1, epochs * 2 // 3)])
    for epoch in range(epochs):
        for rows in torch.randperm(len(y)).split(100):
            optimizer.zero_grad()
            objective(x[rows], y[rows], epoch).loss.backward()
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
        "auroc": float(metrics.auroc(entropy[~wrong], entropy[wrong])),
        "off": float((var / reference).log().square().mean().sqrt()),
    }


def measure(folder: Path, examples: int, epochs: int, seeds: int) -> dict:
    learnt, unseen = digits(folder, "train", examples), digits(folder, "t10k", 10_000)
    records = []
    for seed in range(seeds):
        nets = {variance: train(learnt, variance, epochs, seed) for variance in ("exact", "factored")}
        for trained, evaluated in ROWS:
            figures = evaluate(nets[trained], evaluated, unseen)
            records.append({"seed": seed, "trained": trained, "evaluated": evaluated, **figures})
    return {"examples": examples, "epochs": epochs, "records": records}


def markdown(document: dict) -> str:
    """Mean and standard deviation over the seeds."""
    lines = [
        "| trained | evaluated | error % | NLL | ECE | AUROC | logit variance off |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for trained, evaluated in ROWS:
        rows = [r for r in document["records"] if (r["trained"], r["evaluated"]) == (trained, evaluated)]
        cells = []
        for name, scale, places in zip(FIGURES, (100, 1, 1, 1, 100), (2, 4, 4, 4, 1), strict=True):
            values = [row[name] * scale for row in rows]
            spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.{places}f}{spread}" + " %" * (name == "off"))
        lines.append(f"| {trained} | {evaluated} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST/raw; without it, show the recorded figures")
    parser.add_argument("--examples", type=int, default=6000, help="images to train with (default: 6000)")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file for the figures")
    arguments = parser.parse_args()
    if arguments.mnist is None:
        print(markdown(json.loads(RESULTS.read_text())))
        return
    document = measure(arguments.mnist, arguments.examples, arguments.epochs, arguments.seeds)
    write(arguments.output, document)
    print(markdown(document))


if __name__ == "__main__":
    main()
