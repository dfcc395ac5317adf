"""Tries which of torchvision's classification networks can carry a posterior, and writes a table.

    python -m tools.torchvision_table                    # all of them; resumes after an interruption
    python -m tools.torchvision_table resnet18 vgg11     # some of them
    python -m tools.torchvision_table --again            # all of them, including those already tried

Every network gets random weights and is converted unmodified. It counts as working when

- forward and backward pass in training and evaluation mode give finite means, variances >= 0 and finite gradients, and
  every parameter gets a gradient that gets one in the network itself;
- in the limit of no noise the mean equals the deterministic output and the variance vanishes.

Each network runs in its own process, so that its memory is released. Figures go to docs/torchvision.json, the table to
docs/torchvision.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tools.collected import checks
from tools.collected.subject import Subject
from tools.writing import write

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, TABLE = DOCS / "torchvision.json", DOCS / "torchvision.md"
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


def examine(name: str, pixels: int | None = None, hidden: int | None = None, **options: Any) -> dict:
    """Try one network; raise :class:`tools.collected.checks.Failed` if a check fails.

    Args:
        pixels: side of the images, if not the family's own.
        hidden: units of the hidden layers of its classifier, if not the family's own.
        options: extra arguments for the network.
    """
    from mnvi._torchvision import torchvision

    pixels = pixels or side(name)
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = True  # without it these networks warn

    def build() -> Subject:
        net = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options)
        if hidden:
            narrow(net.classifier, hidden)
        return Subject(net, (torch.randn(2, 3, pixels, pixels),), str(pixels))

    return {"model": name, "side": pixels, **checks.examine(build)}


def narrow(classifier: nn.Sequential, hidden: int) -> None:
    """Shrinks the hidden linear layers to this size: those of AlexNet and VGG hold most of the network's weights."""
    linear = [(place, layer) for place, layer in enumerate(classifier) if isinstance(layer, nn.Linear)]
    sizes = [linear[0][1].in_features, *[hidden] * (len(linear) - 1), linear[-1][1].out_features]
    for (place, _), size, following in zip(linear, sizes, sizes[1:], strict=False):
        classifier[place] = nn.Linear(size, following)


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
        write(RECORDS, json.dumps(dict(sorted(records.items())), indent=1) + "\n")
        write(TABLE, table(records))


if __name__ == "__main__":
    main()
