"""Tries which of torchvision's classification networks can carry a posterior, and writes a table.

    python -m tools.torchvision_table                    # all of them; resumes after an interruption
    python -m tools.torchvision_table resnet18 vgg11     # some of them
    python -m tools.torchvision_table --again            # all of them, including those already tried

Every network gets random weights and is converted unmodified. It counts as working when

- forward and backward pass in training and evaluation mode give finite means, variances >= 0 and finite gradients, and
  in training every parameter gets a gradient;
- in the limit of no noise the mean equals the deterministic output and the variance vanishes.

Each network runs in its own process, so that its memory is released. Figures go to docs/torchvision.json, the table to
docs/torchvision.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mnvi

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, TABLE = DOCS / "torchvision.json", DOCS / "torchvision.md"
NO_NOISE = -90.0
TOLERANCE = 1e-6
CLASSES = 10

# Input sides that some families require; the others take the smallest that all their poolings allow.
SIDES = {"vit": 224, "swin": 224, "maxvit": 224, "inception": 299, "alexnet": 96}
DEFAULT_SIDE = 64


def names() -> list[str]:
    from mnvi._torchvision import torchvision

    found: list[str] = torchvision.models.list_models(module=torchvision.models)
    return found


def side(name: str) -> int:
    return next((size for family, size in SIDES.items() if name.startswith(family)), DEFAULT_SIDE)


def examine(name: str, pixels: int | None = None, **options: Any) -> dict:
    """Try one network; raise AssertionError, or the network's own exception, if a check fails.

    Args:
        pixels: side of the images, if not the family's own.
        options: extra arguments for the network.
    """
    from mnvi._torchvision import torchvision

    torch.manual_seed(0)
    pixels = pixels or side(name)
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = True  # without it these networks warn
    started = time.perf_counter()
    net = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options)
    x = torch.randn(2, 3, pixels, pixels)
    _wake(net, x)
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-2))

    for training in (True, False):
        bayesian.train(training).zero_grad()
        outputs = _outputs(bayesian(x))
        for out in outputs:
            assert out.mean.isfinite().all() and out.var.isfinite().all(), f"not finite, training={training}"
            assert (out.var >= 0).all() and out.var.max() > 0, f"variance not positive, training={training}"
        torch.stack([out.mean.square().mean() + out.var.mean() for out in outputs]).sum().backward()
        _check_gradients(bayesian, training)

    error, variance = _without_noise(net, bayesian, x)
    assert error < TOLERANCE, f"without noise the mean is off by {error:.1e}"
    assert variance < TOLERANCE**2, f"without noise the variance is {variance:.1e}"
    return {
        "model": name,
        "works": True,
        "parameters": sum(p.numel() for p in net.parameters()),
        "added": sum(p.numel() for p in bayesian.parameters()) - sum(p.numel() for p in net.parameters()),
        "layers": len(mnvi.bayesian_layers(bayesian)),
        "side": pixels,
        "error_without_noise": error,
        "variance_without_noise": variance,
        "seconds": round(time.perf_counter() - started, 1),
    }


@torch.no_grad()
def _wake(net: nn.Module, x: Tensor) -> None:
    """Makes a signal reach the output; without one, every check would be empty.

    Some heads start with zero weights, and an untrained batch norm without statistics of its data lets signals die out.
    """
    for module in net.modules():
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.1)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a running mean over all batches, so that one batch is enough
    net.train()(x)


def _outputs(out: mnvi.Gaussian | tuple) -> list[mnvi.Gaussian]:
    """The outputs as a list; networks with auxiliary heads return several."""
    return [out] if isinstance(out, mnvi.Gaussian) else [part for part in out if part is not None]


def _check_gradients(model: nn.Module, training: bool) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            assert not training, f"{name} gets no gradient in training"
        else:
            assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite, training={training}"


@torch.no_grad()
def _without_noise(net: nn.Module, bayesian: nn.Module, x: Tensor) -> tuple[float, float]:
    """Largest deviation of the mean and largest variance, relative to the scale of the deterministic output.

    In float64: deep networks with random weights amplify the rounding errors of float32 to any size.
    """
    net.double()
    bayesian.zero_grad()
    bayesian.double()
    bayesian.load_state_dict(net.state_dict(), strict=False)  # training mode moved the batch norms' statistics
    for name, parameter in bayesian.named_parameters():
        if name.endswith("rho"):
            parameter.fill_(NO_NOISE)
    expected: Tensor = net.eval()(x.double())
    (out,) = _outputs(bayesian.eval()(x.double()))
    scale = expected.abs().max()
    return float((out.mean - expected).abs().max() / scale), float(out.var.max() / scale.square())


def table(records: dict[str, dict]) -> str:
    working = [r for r in records.values() if r["works"]]
    lines = [
        "# torchvision's classification networks",
        "",
        "Written by `python -m tools.torchvision_table`; the top of that file lists the checks.",
        f"{len(working)} of the {len(records)} networks tried work; torchvision has {len(names())}.",
        "",
        "| network | works | layers with posterior | parameters | added by MNVI | image | mean off without noise |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in sorted(records.items()):
        if r["works"]:
            share = f"{r['added']:,} ({100 * r['added'] / r['parameters']:.2f} %)"
            cells = ["yes", r["layers"], f"{r['parameters']:,}", share, r["side"], f"{r['error_without_noise']:.0e}"]
        else:
            cells = [f"no: {r['reason']}", "", "", "", "", ""]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    lines += [f"| {name} | not run here |" + " |" * 5 for name in names() if name not in records]
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="default: all networks that are not yet in docs/torchvision.json")
    parser.add_argument("--alone", metavar="MODEL", help="examine one network in this process and print its record")
    parser.add_argument("--again", action="store_true", help="also try networks that docs/torchvision.json already has")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(examine(arguments.alone)))
        return
    records: dict[str, dict] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for name in arguments.models or [name for name in names() if arguments.again or name not in records]:
        run = subprocess.run(
            [sys.executable, "-m", "tools.torchvision_table", "--alone", name], capture_output=True, text=True
        )
        if run.returncode == 0:
            records[name] = json.loads(run.stdout.splitlines()[-1])
        else:
            reason = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
            records[name] = {"model": name, "works": False, "reason": reason}
        print(f"{name:24} {records[name].get('seconds', records[name].get('reason'))}", flush=True)
        _write(RECORDS, json.dumps(dict(sorted(records.items())), indent=1) + "\n")
        _write(TABLE, table(records))


if __name__ == "__main__":
    main()
