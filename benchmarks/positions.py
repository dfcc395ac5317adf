"""What ``mnvi.options(spatial="shared_weights")`` costs, as a ratio to the same pass with independent positions.

    python -m benchmarks.positions                       # all rows; writes benchmarks/results/positions.json
    python -m benchmarks.positions --models resnet20 --rounds 3    # a part of them, beside those already there

Networks predict as :func:`mnvi.optimize_for_inference` returns them. Both settings run in turn on one thread; a figure
is the median over rounds of the ratio of CPU times, which other processes disturb less than the clock. ``--page``
writes the table into docs/speed.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mnvi
from benchmarks.tables import PAGE, replace_between_marks
from benchmarks.timing import write

RESULTS = Path(__file__).parent / "results" / "positions.json"
MODELS: dict[str, Callable[[], nn.Module]] = {
    "all_cnn": mnvi.models.all_cnn,
    "resnet18": lambda: mnvi.models.resnet18(10, stem="cifar"),
    "resnet20": mnvi.models.resnet20,
}
MODES = ("eager", "compiled")
QUANTITIES = ("inference", "training")
SETTINGS = ("independent", "shared_weights")


def step_of(model: str, mode: str, quantity: str, setting: Any, batch: int) -> Callable[[], None]:
    torch.manual_seed(0)
    net = mnvi.convert(MODELS[model](), mnvi.MultiplicativeNoise(prior_variance=1e-3))
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    if mode == "compiled":
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(num_samples=64), num_data=50_000, kappa=0.01)

    def loss() -> Tensor:
        return elbo(net(x), y, mnvi.kl_divergence(net)).loss

    if quantity == "inference":
        predict = mnvi.optimize_for_inference(net.eval(), compile=mode == "compiled")
    else:
        run = torch.compile(loss) if mode == "compiled" else loss

    def step() -> None:
        with mnvi.options(spatial=setting), torch.set_grad_enabled(quantity == "training"):
            if quantity == "inference":
                predict(x)
            else:
                run().backward()

    return step


def measure(model: str, mode: str, quantity: str, batch: int, rounds: int) -> dict[str, Any]:
    torch.compiler.reset()
    steps = [step_of(model, mode, quantity, setting, batch) for setting in SETTINGS]
    for step in steps:
        step()
        step()
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for step, taken in zip(steps, times, strict=True):
            start = time.process_time()
            step()
            taken.append((time.process_time() - start) * 1e3)
    ratio = statistics.median(shared / alone for alone, shared in zip(*times, strict=True))
    milliseconds = dict(zip(SETTINGS, map(statistics.median, times), strict=True))
    return {"model": model, "mode": mode, "quantity": quantity, "batch": batch, "ratio": ratio, **milliseconds}


def markdown(records: list[dict[str, Any]]) -> str:
    lines = [
        "| network | mode | inference | training |",
        "| --- | --- | --- | --- |",
    ]
    for model in MODELS:
        for mode in MODES:
            cells = []
            for quantity in QUANTITIES:
                found = [r for r in records if (r["model"], r["mode"], r["quantity"]) == (model, mode, quantity)]
                cells.append(f"{found[-1]['ratio']:.2f} (batch {found[-1]['batch']})" if found else "not run")
            lines.append(f"| {model} | {mode} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--quantities", nargs="+", choices=QUANTITIES, default=list(QUANTITIES))
    parser.add_argument("--batch", type=int, default=100, help="batch size (default: 100)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over both settings (default: 5)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file for the figures")
    parser.add_argument("--page", action="store_true", help="only write the table into docs/speed.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records: list[dict[str, Any]] = []
    if arguments.output.exists():
        records = json.loads(arguments.output.read_text())["records"]
    if arguments.page:
        replace_between_marks(PAGE, "positions", markdown(records))
        return
    for mode in arguments.modes:
        for model in arguments.models:
            for quantity in arguments.quantities:
                found = measure(model, mode, quantity, arguments.batch, arguments.rounds)
                key = {name: found[name] for name in ("model", "mode", "quantity")}
                records = [r for r in records if not key.items() <= r.items()] + [found]
                write(arguments.output, {"records": records})
                print(markdown(records), flush=True)


if __name__ == "__main__":
    main()
