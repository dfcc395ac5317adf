"""Compares predicted variances of outputs with those of sampled weights, with and without the covariance of positions.

    python -m tools.positions                       # all networks; resumes after an interruption
    python -m tools.positions resnet20 vit          # some of them
    python -m tools.positions --again               # all of them, including those already compared
    python -m tools.positions --trained             # train a network with both settings instead, and compare metrics

Networks have random weights and running statistics of batch norms filled from the images, or, for small ones, weights
trained on scikit-learn's digits. Every weight w is drawn from N(w, alpha w²), alpha = log(1 + exp(rho)), 300 times. The
figure is the median, over images and outputs, of predicted variance / variance of the samples: 1 is right. Figures go
to docs/positions.json, the tables to docs/positions.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi
from mnvi.comparison import drawn_weights
from tools.position_networks import SmallUNet, SmallViT, all_convolutional

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, TABLE = DOCS / "positions.json", DOCS / "positions.md"
SETTINGS = ("independent", "shared_weights")
RHOS = (-7.0, -5.0, -3.0)
SAMPLES = 300
SEEDS = (0, 1, 2)
LOWEST, HIGHEST = 0.75, 1.35  # what counts as right


def torchvisions(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from mnvi._torchvision import torchvision

        net: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=10)
        return net

    return build


# name: (network, side of the images, number of images)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "all_cnn": (mnvi.models.all_cnn, 32, 2),
    "resnet18, stem for CIFAR": (mnvi.models.resnet18, 32, 2),
    "resnet18, stem for ImageNet": (lambda: mnvi.models.resnet18(10, "imagenet"), 64, 2),
    "resnet20": (mnvi.models.resnet20, 32, 4),
    "mobilenet_v3_small": (torchvisions("mobilenet_v3_small"), 64, 4),
    "efficientnet_b0": (torchvisions("efficientnet_b0"), 64, 2),
    "convnext_tiny": (torchvisions("convnext_tiny"), 64, 2),
    "U-Net, each pixel": (SmallUNet, 32, 2),
    "U-Net, mean over pixels": (lambda: nn.Sequential(SmallUNet(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), 32, 4),
    "ViT, mean over tokens": (SmallViT, 32, 4),
}
TRAINED: dict[str, Callable[[], nn.Module]] = {
    "all-convolutional, trained on digits": all_convolutional,
    "resnet20, trained on digits": lambda: mnvi.models.resnet20(10, in_channels=1),
}


def images(side: int) -> Tensor:
    """Images with structure on two scales."""
    generator = torch.Generator().manual_seed(0)
    coarse = F.interpolate(torch.randn(32, 3, 8, 8, generator=generator), size=side, mode="bilinear")
    return coarse + 0.3 * torch.randn(32, 3, side, side, generator=generator)


def digits(side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's digits, shuffled: images and labels of 1,300 for training and of the 497 others."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = F.interpolate(torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1, size=side, mode="bilinear")
    y = torch.tensor(found.target, dtype=torch.long)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1300], y[:1300], x[1300:], y[1300:]


@torch.no_grad()
def fill_statistics(net: nn.Module, x: Tensor) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a running mean over all batches, so that one batch is enough
        elif isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    net.train()(x)
    net.eval()


@torch.no_grad()
def ratios(net: nn.Module, x: Tensor, rho: float) -> dict[str, Any]:
    """Median ratio of predicted to sampled variance for both settings, and the functions that fall back."""
    model = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=rho)).eval()
    generator = torch.Generator().manual_seed(0)
    outs = []
    for _ in range(SAMPLES):
        with drawn_weights(model, generator):
            outs.append(model(x))
    variance = torch.stack(outs).double().var(0)
    record: dict[str, Any] = {}
    for setting in SETTINGS:
        with mnvi.options(spatial=setting):
            record[setting] = round((model(x).var.double() / variance).median().item(), 3)
    return record


def trained(build: Callable[[], nn.Module], x: Tensor, y: Tensor, steps: int = 400) -> nn.Module:
    """Trained without noise."""
    torch.manual_seed(0)
    net = build().train()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(steps):
        chosen = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(net(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return net.eval()


def compare(name: str) -> list[dict[str, Any]]:
    started = time.perf_counter()
    if name in TRAINED:
        x, y, test, labels = digits(16)
        net = trained(TRAINED[name], x, y)
        with torch.no_grad():
            accuracy = (net(test).argmax(1) == labels).double().mean().item()
        print(f"{name}: accuracy {accuracy:.3f}", flush=True)
        chosen = test[:8]
    else:
        build, side, count = NETWORKS[name]
        torch.manual_seed(0)
        net, x = build(), images(side)
        fill_statistics(net, x)
        chosen = x[:count]
    found = [{"network": name, "rho": rho, "samples": SAMPLES, **ratios(net, chosen, rho)} for rho in RHOS]
    print(
        f"{name}: {[record['shared_weights'] for record in found]}, {time.perf_counter() - started:.0f} s", flush=True
    )
    return found


def helps(seed: int) -> list[dict[str, Any]]:
    """Metrics of an all-convolutional network trained with each setting on digits 0 to 7; 8 and 9 are foreign."""
    x, y, test, labels = digits(8)
    x, y, known = x[y < 8], y[y < 8], labels < 8
    records = []
    for setting in SETTINGS:
        torch.manual_seed(seed)
        model = mnvi.convert(all_convolutional(8), mnvi.MultiplicativeNoise(prior_variance=1e-2))
        likelihood = mnvi.CategoricalLikelihood(num_samples=64)
        elbo = mnvi.ELBO(likelihood, num_data=len(x), kappa=0.02)
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        with mnvi.options(spatial=setting):
            for _ in range(600):
                chosen = torch.randint(len(x), (64,))
                optimizer.zero_grad()
                elbo(model(x[chosen]), y[chosen], mnvi.kl_divergence(model)).loss.backward()
                optimizer.step()
            model.eval()
            torch.manual_seed(0)
            with torch.no_grad():
                probs = likelihood.predictive(model(test)).probs
        entropy = mnvi.metrics.predictive_entropy(probs)
        scored = probs[known], labels[known]
        records.append(
            {
                "seed": seed,
                "trained": setting,
                "accuracy": 1 - mnvi.metrics.misclassification(*scored).item(),
                "nll": mnvi.metrics.nll(*scored).item(),
                "ece": mnvi.metrics.ece(*scored).item(),
                "aumrc": mnvi.metrics.aumrc(*scored).item(),
                "auroc": mnvi.metrics.auroc(entropy[known], entropy[~known]).item(),
            }
        )
        print(records[-1], flush=True)
    return records


def table(records: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "# Predicted and sampled variances",
        "",
        "Written by `python -m tools.positions`; the top of that file says what is compared. Each figure is the median",
        f"ratio of the predicted to the sampled variance of the outputs, {SAMPLES} draws of the weights, for noise of",
        f"ρ = −7, −5 and −3. The sampled variance of an output is uncertain by {100 * (2 / SAMPLES) ** 0.5:.0f} %.",
        f'"Right" means between {LOWEST} and {HIGHEST}.',
        "",
        "| network | `independent` | `shared_weights` | right |",
        "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for name in [*NETWORKS, *TRAINED]:
        if name not in records:
            lines.append(f"| {name} | not run | not run | |")
            continue
        shown = {s: " / ".join(f"{record[s]:.2f}" for record in records[name]) for s in SETTINGS}
        right = sum(LOWEST <= record["shared_weights"] <= HIGHEST for record in records[name])
        verdict = "yes" if right == len(RHOS) else f"{right} of {len(RHOS)}"
        lines.append(f"| {name} | {shown['independent']} | {shown['shared_weights']} | {verdict} |")
    lines += ["", "## Trained with each setting", ""]
    if "helps" in records:
        lines += [
            "An all-convolutional network that ends in average pooling, trained on digits 0 to 7 of scikit-learn with",
            "each setting and evaluated with the same; digits 8 and 9 are foreign. Mean and deviation of three seeds.",
            "",
            "| trained with | accuracy | NLL | ECE | AUMRC | AUROC |",
            "| --- | --- | --- | --- | --- | --- |",
        ]  # fmt: skip
        for setting in SETTINGS:
            rows = [record for record in records["helps"] if record["trained"] == setting]
            cells = []
            for metric in ("accuracy", "nll", "ece", "aumrc", "auroc"):
                values = torch.tensor([row[metric] for row in rows], dtype=torch.float64)
                cells.append(f"{values.mean():.4f} ± {values.std():.4f}")
            lines.append(f"| `{setting}` | {' | '.join(cells)} |")
    else:
        lines.append("Not run.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="names, or their beginnings; all if none is given")
    parser.add_argument("--again", action="store_true", help="compare networks again that have been compared")
    parser.add_argument("--trained", action="store_true", help="train with both settings instead")
    arguments = parser.parse_args()
    records: dict[str, list[dict[str, Any]]] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    wanted = [
        name
        for name in [*NETWORKS, *TRAINED]
        if not arguments.networks or any(name.startswith(start) for start in arguments.networks)
    ]
    if arguments.trained:
        wanted = ["helps"]
    for name in wanted:
        if name not in records or arguments.again:
            records[name] = [r for seed in SEEDS for r in helps(seed)] if name == "helps" else compare(name)
            RECORDS.write_text(json.dumps(records, indent=1) + "\n")
            TABLE.write_text(table(records))
    TABLE.write_text(table(records))


if __name__ == "__main__":
    main()
