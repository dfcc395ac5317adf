"""Measures the parts of a training step of ResNet18 on ImageNet, and the bytes that its workers exchange.

Two processes, each with one thread on its own core, hold the network as the study's workers do, send gradients by gloo
over the loopback interface, and run the methods in turn. Times are medians over the rounds on the first process. Bytes
are counted where torch's DDP hands over its buckets.

    python -m benchmarks.scaling.steps                # two minutes; writes benchmarks/results/scaling_steps.json
    python -m benchmarks.scaling.steps --batch 2 --rounds 1
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import mnvi
from benchmarks.scaling import setting
from benchmarks.timing import write
from pipeline.images import objectives
from pipeline.images.group import Group
from pipeline.params import Cell

T = TypeVar("T")

RESULTS = setting.RESULTS / "scaling_steps.json"
METHODS = ("deterministic", "mnvi", "mfvi")
PARTS = ("forward", "backward", "kl", "all_reduce", "update")
CLASSES, IMAGES, SHAPE = 1000, 1_281_167, (3, 224, 224)  # of ImageNet


def cell(method: str) -> Cell:
    """ResNet18 on ImageNet; the study has no such cell for MFVI, which takes its hyperparameters from CIFAR-10."""
    study = setting.images_study()
    if method == "mfvi":
        recipe = study.cell("resnet18-imagenet-mnvi").experiment
        return replace(study.cell("resnet18-cifar10-mfvi"), experiment=recipe)
    return study.cell(f"resnet18-imagenet-{method}")


def objective(method: str) -> mnvi.Objective:
    return objectives.build(cell(method), seed=0, classes=CLASSES, channels=3, examples=IMAGES)


def all_reduced(model: DistributedDataParallel, x: Tensor, y: Tensor) -> int:
    """Bytes of gradients that a step hands to the all-reduce; the model is unusable afterwards."""
    sizes: list[int] = []

    def count(sizes, bucket):  # unannotated: DDP would mistake string annotations for wrong types
        sizes.append(bucket.buffer().nbytes)
        return allreduce_hook(dist.group.WORLD, bucket)

    model.register_comm_hook(sizes, count)
    model(x, y).loss.backward()
    return sum(sizes)


class Worker:
    """Times the parts of a method's step, one after the other."""

    def __init__(self, method: str, batch: int, group: Group) -> None:
        self.objective, self.group = objective(method), group
        recipe = cell(method).experiment
        self.clip = recipe.clip or math.inf
        self.optimizer = torch.optim.SGD(self.objective.parameters(), 1e-6, recipe.momentum, nesterov=recipe.nesterov)
        self.x, self.y = torch.randn(batch, *SHAPE), torch.randint(CLASSES, (batch,))
        self.flat = torch.zeros(objectives.num_parameters(self.objective))

    def times(self) -> dict[str, float]:
        """Milliseconds of each part; forward and backward pass include the KL divergence."""
        terms, forward = timed(lambda: self.objective(self.x, self.y))
        _, backward = timed(terms.loss.backward)
        _, update = timed(self._update)
        dist.barrier()
        _, all_reduce = timed(lambda: self.group.sum(self.flat))
        _, kl = timed(self._kl)
        return {"forward": forward, "backward": backward, "all_reduce": all_reduce, "update": update, "kl": kl}

    def _update(self) -> None:
        nn.utils.clip_grad_norm_(self.objective.parameters(), self.clip, norm_type=math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _kl(self) -> None:
        if mnvi.bayesian_layers(self.objective.net):
            mnvi.kl_divergence(self.objective.net).backward()
            self.optimizer.zero_grad()


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = work()
    return result, (time.perf_counter() - start) * 1e3


def work(rank: int, meeting: str, batch: int, rounds: int, output: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    setting.pin(rank)
    group = Group.joined(torch.device("cpu"))
    workers = {method: Worker(method, batch, group) for method in METHODS}
    found: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for _ in range(1 + rounds):
        for method, worker in workers.items():
            found[method].append(worker.times())
    records = []
    for method, worker in workers.items():
        times = found[method][1:]  # the first warms up
        model = group.wrap(worker.objective)
        assert isinstance(model, DistributedDataParallel)
        records.append(
            {
                "method": method,
                "parameters": objectives.num_parameters(worker.objective),
                "bytes": all_reduced(model, worker.x[:1], worker.y[:1]),
                "milliseconds": {part: statistics.median(one[part] for one in times) for part in times[0]},
            }
        )
    if group.first:
        Path(output).write_text(json.dumps(records))
    dist.destroy_process_group()


def measure(batch: int, rounds: int) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (f"{folder}/meeting", batch, rounds, f"{folder}/records"), nprocs=2)
        records: list[dict] = json.loads(Path(folder, "records").read_text())
    return records


def markdown(document: dict) -> str:
    records = {record["method"]: record for record in document["records"]}
    plain = records["deterministic"]
    lines = [
        "| method | parameters | all-reduced per step | forward | backward | of these: KL | all-reduce | update |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method, record in records.items():
        more = record["bytes"] / plain["bytes"] - 1
        size = f"{record['bytes']:,} bytes" + ("" if method == "deterministic" else f" (+{more:.2%})")
        times = " | ".join(f"{record['milliseconds'][part]:.0f} ms" for part in PARTS)
        lines.append(f"| {method} | {record['parameters']:,} | {size} | {times} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help="images per step and worker (default: 8)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over the methods (default: 3)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file for the figures")
    arguments = parser.parse_args()
    records = measure(arguments.batch, arguments.rounds)
    document = {"torch": torch.__version__, "batch": arguments.batch, "rounds": arguments.rounds, "records": records}
    write(arguments.output, document)
    print(markdown(document))


if __name__ == "__main__":
    main()
