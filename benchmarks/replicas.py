"""Compares training many small networks together with a plain loop over single networks, with the same library.

The data have the size of the boston set, the recipe is the study's. Each round trains one network by the loop, then all
of them together, in one process; the figure is the ratio of the times per network. It includes compilation: each round
compiles again, with the compiler's caches as they are.

    python -m benchmarks.replicas                 # 200 networks; writes benchmarks/results/replicas.json
    python -m benchmarks.replicas --networks 20 --epochs 5 --rounds 1 --output mine.json
    python -m benchmarks.replicas --plain         # without torch's compiler
"""

from __future__ import annotations

import argparse
import json
import math
import resource
from pathlib import Path

import torch
from torch import Tensor, nn

import mnvi
from benchmarks.tables import PAGE, replace_between_marks
from benchmarks.timing import interleaved, write
from mnvi import replicas

RESULTS = Path(__file__).parent / "results" / "replicas.json"
PLAIN = RESULTS.with_stem("replicas_plain")
ROWS, FEATURES, PRIOR_VARIANCE = 455, 13, 10.0


def build(k: int) -> mnvi.Objective:
    net = mnvi.methods.build("mnvi", lambda: mnvi.models.mlp(FEATURES), prior_variance=PRIOR_VARIANCE)
    return mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=ROWS, kappa=0.01))


def one_by_the_loop(x: Tensor, y: Tensor, recipe: replicas.Recipe) -> None:
    objective = build(0)
    optimizer = torch.optim.SGD(objective.parameters(), recipe.learning_rate, recipe.momentum)
    for epoch in range(recipe.epochs):
        for rows in torch.randperm(len(y)).split(recipe.batch_size):
            optimizer.zero_grad()
            objective(x[rows], y[rows], epoch).loss.backward()
            nn.utils.clip_grad_norm_(objective.parameters(), recipe.clip or math.inf, math.inf)
            optimizer.step()


def measure(networks: int, epochs: int, rounds: int, compiled: bool) -> dict:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=generator)
    y = x[:, 0] + 0.1 * torch.randn(ROWS, generator=generator)
    recipe = replicas.Recipe(epochs, batch_size=64, learning_rate=0.05, momentum=0.9, clip=1.0)
    with mnvi.options(relu_floor=1e-5):
        loop, together = interleaved(
            [
                lambda: one_by_the_loop(x, y, recipe),
                lambda: replicas.train(build, [(x, y)] * networks, range(networks), recipe, compile=compiled),
            ],
            rounds,
        )
    return {
        "networks": networks,
        "epochs": epochs,
        "rounds": rounds,
        "compiled": compiled,
        "threads": torch.get_num_threads(),
        "loop_milliseconds_per_network": loop,
        "together_milliseconds_per_network": together / networks,
        "ratio": loop / (together / networks),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def markdown(*measured: dict) -> str:
    lines = [
        "| step | networks | epochs | one by the loop | one of all together | ratio | peak memory |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for figures in measured:
        lines.append(
            f"| {'compiled' if figures['compiled'] else 'replayed'} | {figures['networks']} | {figures['epochs']} "
            f"| {figures['loop_milliseconds_per_network']:.0f} ms "
            f"| {figures['together_milliseconds_per_network']:.1f} ms | {figures['ratio']:.0f} "
            f"| {figures['peak_memory_bytes'] / 2**20:.0f} MiB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="replay the recorded step instead of compiling it")
    parser.add_argument("--output", type=Path, help="JSON file for the figures (default: the tracked file)")
    parser.add_argument("--page", action="store_true", help="only write the recorded figures into docs/speed.md")
    arguments = parser.parse_args()
    if arguments.page:
        replace_between_marks(PAGE, "replicas", markdown(*(json.loads(path.read_text()) for path in (RESULTS, PLAIN))))
        return
    figures = measure(arguments.networks, arguments.epochs, arguments.rounds, not arguments.plain)
    write(arguments.output or (PLAIN if arguments.plain else RESULTS), figures)
    print(markdown(figures))


if __name__ == "__main__":
    main()
