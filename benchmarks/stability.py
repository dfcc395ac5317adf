"""Trains a Bayesian ResNet18 from scratch in float32 and under bfloat16 autocast; losses must stay finite and fall.

    python -m benchmarks.stability                          # scikit-learn's handwritten digits, 200 steps each
    python -m benchmarks.stability --images folder/train    # any folder of class folders with photos
    python -m benchmarks.stability --methods mnvi --kinds bfloat16

On a terminal, it shows every 25th step. It exits with 1 if a loss is not finite, or if the mean loss over the last
quarter of the steps is not below the mean over the first.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Some virtual machines announce AMX but kill a process that uses it in half precision.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
import torch.nn.functional as F
from torch import Tensor

import mnvi

POSTERIORS: dict[str, mnvi.Posterior] = {
    "mnvi": mnvi.MultiplicativeNoise(prior_variance=1e-4),
    "mfvi": mnvi.MeanField(prior_variance=1e-4),
}

KINDS = {"float32": False, "bfloat16": True}  # whether autocast is on
EVERY = 25  # steps between two lines on a terminal


def digits(side: int = 32) -> tuple[Tensor, Tensor]:
    """1,797 handwritten digits, 8 x 8 grey, as larger colour images with zero mean and unit variance."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)
    x = F.interpolate((x - x.mean()) / x.std(), size=side, mode="bilinear").expand(-1, 3, -1, -1)
    return x, torch.as_tensor(labels)


def photos(folder: Path) -> tuple[Tensor, Tensor]:
    """All images of a folder with one subfolder per class, resized to 32 x 32."""
    from mnvi._torchvision import torchvision

    transforms = torchvision.transforms
    read = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()])
    pictures = torchvision.datasets.ImageFolder(str(folder), read)
    images, labels = zip(*pictures, strict=True)
    x = torch.stack(images)
    return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True), torch.tensor(labels)


def train(x: Tensor, y: Tensor, posterior: mnvi.Posterior, autocast: bool, steps: int, batch: int) -> list[float]:
    """The loss of every step."""
    torch.manual_seed(0)
    net = mnvi.convert(mnvi.models.resnet18(int(y.max()) + 1, stem="cifar"), posterior)
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=len(y), kappa=5e-8 * len(y))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    losses = []
    for step in range(1, steps + 1):
        chosen = torch.randint(len(y), (batch,))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = net(x[chosen])
            terms = elbo(out, y[chosen], mnvi.kl_divergence(net))
        if out.var.dtype != torch.float32:
            raise AssertionError(f"variances are {out.var.dtype}, not float32")
        optimizer.zero_grad()
        terms.loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1, norm_type=math.inf)
        optimizer.step()
        losses.append(float(terms.loss.detach()))
        show(step, steps, losses[-1])
    return losses


def show(step: int, steps: int, loss: float) -> None:
    """Shows the progress on a terminal."""
    if step % EVERY == 0 and sys.stderr.isatty():
        print(f"step {step} of {steps}: loss {loss:.3f}", file=sys.stderr, flush=True)


def falls(losses: list[float]) -> bool:
    """Whether all losses are finite, and lower in the last quarter than in the first."""
    first, last = ends(losses)
    return all(map(math.isfinite, losses)) and last < first


def ends(losses: list[float]) -> tuple[float, float]:
    """Mean losses of the first and of the last quarter of the steps."""
    quarter = max(len(losses) // 4, 1)
    return sum(losses[:quarter]) / quarter, sum(losses[-quarter:]) / quarter


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of class folders (default: scikit-learn's digits)")
    parser.add_argument("--methods", nargs="+", choices=list(POSTERIORS), default=list(POSTERIORS))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="kinds of numbers")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args(given)
    x, y = photos(arguments.images) if arguments.images else digits()
    good = True
    for method in arguments.methods:
        posterior = POSTERIORS[method]
        for kind in arguments.kinds:
            losses = train(x, y, posterior, KINDS[kind], arguments.steps, arguments.batch)
            good &= falls(losses)
            first, last = ends(losses)
            name = "bfloat16 autocast" if KINDS[kind] else kind
            verdict = "falls" if falls(losses) else "FAILS"
            print(f"{method:6} {name:18} loss {first:.3f} -> {last:.3f}  {verdict}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
