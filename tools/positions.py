"""Compares predicted variances of outputs with those of sampled weights, with and without the covariance of positions.

    python -m tools.positions                       # all networks; resumes after an interruption
    python -m tools.positions resnet20 vit          # those whose names begin so
    python -m tools.positions --again               # all of them, including those already compared
    python -m tools.positions --samples FOLDER      # keep sampled outputs, so that comparing again needs no new ones
    python -m tools.positions --training            # train networks with both settings instead, and compare metrics

Networks have random weights and running statistics of batch norms filled from the images, or weights trained on
scikit-learn's digits. Every weight w is drawn from N(w, alpha w²), alpha = log(1 + exp(rho)), 300 times, with one rho
for all weights or with the noise that the network learnt. Figures go to docs/positions.json, the tables to
docs/positions.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mnvi
from mnvi.comparison import drawn_weights
from tools.position_data import digits, images
from tools.position_networks import SmallUNet, SmallViT, all_convolutional
from tools.position_table import RECORDS, TABLE, table
from tools.position_training import SETTINGS, SIDE, TRAINED, helps, resnet20, trained

RHOS = (-7.0, -5.0, -3.0)
SAMPLES = 300
# name: (network, seeds, steps of training)
TRAININGS: dict[str, tuple[Callable[[int], nn.Module], int, int]] = {
    "training all-convolutional": (all_convolutional, 3, 600),
    "training resnet20": (resnet20, 3, 400),
}


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


@torch.no_grad()
def fill_statistics(net: nn.Module, x: Tensor) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a running mean over all batches, so that one batch is enough
        elif isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    net.train()(x)
    net.eval()


def prepared(name: str) -> tuple[nn.Module, Tensor, Tensor, dict[str, float]]:
    """The network, the images to compare it on, as many others, and what training gave."""
    if name in TRAINED:
        net, accuracy = trained(name)
        x = digits(SIDE)[2]
        return net, x[:8], x[8:16], {"accuracy": round(accuracy, 3)}
    build, side, count = NETWORKS[name]
    torch.manual_seed(0)
    net, x = build(), images(side)
    fill_statistics(net, x)
    return net, x[:count], x[count : 2 * count], {}


@torch.no_grad()
def sampled(model: nn.Module, x: Tensor, kept: Path | None) -> Tensor:
    """Outputs with weights drawn again and again, [samples, images, outputs]; read from the file if it is there."""
    if kept is not None and kept.exists():
        found: Tensor = torch.load(kept, weights_only=True)
        return found
    generator = torch.Generator().manual_seed(0)
    outs = []
    for _ in range(SAMPLES):
        with drawn_weights(model, generator):
            outs.append(model(x))
    if kept is not None:
        torch.save(torch.stack(outs), kept)
    return torch.stack(outs)


@torch.no_grad()
def ratios(model: nn.Module, x: Tensor, others: Tensor, outs: Tensor) -> dict[str, Any]:
    """Medians over outputs: predicted / sampled variance, for both settings; how far the samples can be trusted.

    ``scaled`` has the factor that :func:`mnvi.scale_variance` finds with other images and other draws.
    """
    outs = outs.double().flatten(2)
    centred = outs - outs.mean(0)
    variance = centred.square().mean(0) * len(outs) / (len(outs) - 1)
    kurtosis = centred.pow(4).mean(0) / centred.square().mean(0).square()
    lower, upper = torch.quantile(centred, torch.tensor([0.25, 0.75]).double(), 0)
    of_quartiles = ((upper - lower) / 1.349).square()  # a Gaussian's quartiles are 1.349 deviations apart
    record = {
        "sampling_error": round(((kurtosis - 1) / len(outs)).sqrt().median().item(), 3),
        "quartiles": round((of_quartiles / variance).median().item(), 3),
    }
    for setting in SETTINGS:
        with mnvi.options(spatial=setting):
            predicted = model(x).var.double().flatten(1)
        record[setting] = round((predicted / variance).median().item(), 3)
        record[f"{setting}_to_quartiles"] = round((predicted / of_quartiles).median().item(), 3)
    with mnvi.options(spatial="shared_weights"):
        generator = torch.Generator().manual_seed(1)
        scaled = mnvi.scale_variance(model, others, SAMPLES, generator=generator)
        ratio = scaled(x).var.double().flatten(1) / variance
    low, median, high = ratio.quantile(torch.tensor([0.05, 0.5, 0.95]).double()).tolist()
    return record | {"scaled": round(median, 3), "scaled_range": [round(low, 3), round(high, 3)]}


def compare(name: str, samples: Path | None) -> list[dict[str, Any]]:
    started = time.perf_counter()
    net, x, others, gained = prepared(name)
    found = []
    for rho in ["learnt"] if mnvi.bayesian_layers(net) else RHOS:
        model = net
        if not isinstance(rho, str):
            model = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=rho)).eval()
        kept = None if samples is None else samples / f"{name.replace(' ', '_')}_{rho}.pt"
        outs = sampled(model, x, kept)
        found.append({"network": name, "rho": rho, "samples": SAMPLES, **gained, **ratios(model, x, others, outs)})
    print(f"{name}: {[r['shared_weights'] for r in found]}, {time.perf_counter() - started:.0f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="names, or their beginnings; all if none is given")
    parser.add_argument("--again", action="store_true", help="compare networks again that have been compared")
    parser.add_argument("--samples", type=Path, help="folder that keeps sampled outputs")
    parser.add_argument("--training", action="store_true", help="train with both settings instead")
    arguments = parser.parse_args()
    if arguments.samples is not None:
        arguments.samples.mkdir(parents=True, exist_ok=True)
    wanted = [
        name
        for name in (TRAININGS if arguments.training else [*NETWORKS, *TRAINED])
        if not arguments.networks or any(name.startswith(start) for start in arguments.networks)
    ]
    for name in wanted:
        records = read()
        if name in records and not arguments.again:
            continue
        if name in TRAININGS:
            build, seeds, steps = TRAININGS[name]
            found = [record for seed in range(seeds) for record in helps(build, seed, steps)]
        else:
            found = compare(name, arguments.samples)
        records = {**read(), name: found}
        RECORDS.write_text(json.dumps(records, indent=1) + "\n")
        TABLE.write_text(table(records, [*NETWORKS, *TRAINED]))
    TABLE.write_text(table(read(), [*NETWORKS, *TRAINED]))


def read() -> dict[str, list[dict[str, Any]]]:
    records: dict[str, list[dict[str, Any]]] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return records


if __name__ == "__main__":
    main()
