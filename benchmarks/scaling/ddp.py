"""Compares the throughput of training on two nodes with one: the study's own loop, in workers that Ray Train starts.

The benchmark starts two Ray nodes of one CPU each on this machine. Each has one worker with one thread on its own core.
Every round runs these four arrangements in turn, in the same two processes:

    alone     one worker trains; the other waits
    apart     both train, each for itself; shows the cost of shared memory and caches
    weak      both train one network, each with as many images as one alone
    strong    both train one network, each with half as many

Efficiency is images per second divided by twice those of one worker alone. It is the median over the rounds of the
ratio within a round, because times on a shared machine drift. A step is timed from one call of the loop's `should_stop`
to the next.

    python -m benchmarks.scaling.ddp                  # ten minutes; writes benchmarks/results/scaling_ddp.json
    python -m benchmarks.scaling.ddp --models lenet --rounds 2
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.scaling import setting
from benchmarks.timing import write
from pipeline import cluster
from pipeline.images import loop
from pipeline.images.group import Group
from pipeline.params import Cell

RESULTS = setting.RESULTS / "scaling_ddp.json"
RECORDS = "records.jsonl"
METHODS = ("deterministic", "mnvi")
ARRANGEMENTS = ("alone", "apart", "weak", "strong")
WARM_UP = 1  # steps; in the first, DDP learns the order of the gradients


@dataclass(frozen=True)
class Model:
    cell: str  # name of a cell of the images study, without the method
    shape: tuple[int, int, int]
    batch: int  # images per step of one worker alone
    steps: int  # timed steps per turn


MODELS = {
    "lenet": Model("lenet-mnist", (1, 28, 28), batch=64, steps=20),
    "resnet18": Model("resnet18-cifar10", (3, 32, 32), batch=64, steps=2),
}


@dataclass
class Clock:
    """The loop's `should_stop`, called once per step: notes the time, and returns true when all steps are done."""

    steps: int
    times: list[float] = field(default_factory=list)

    def __call__(self) -> bool:
        self.times.append(time.perf_counter())
        return len(self.times) > WARM_UP + self.steps

    def seconds_per_step(self) -> float:
        return (self.times[-1] - self.times[WARM_UP]) / self.steps


def global_batch(model: Model, arrangement: str) -> int:
    return 2 * model.batch if arrangement == "weak" else model.batch


def efficiency(throughput: dict[str, float], arrangement: str) -> float:
    return throughput[arrangement] / (2 * throughput["alone"])


def work(config: dict[str, Any]) -> None:
    """Runs on each of the two workers.

    Args:
        config: `models` by name, `rounds`, and the `folder` that has a folder of images per model and gets the records.
    """
    group, folder = Group.joined(torch.device("cpu")), Path(config["folder"])
    setting.pin(group.rank)
    study = setting.images_study()
    for round_ in range(config["rounds"]):
        for (name, model), method in itertools.product(config["models"].items(), METHODS):
            cell = study.cell(f"{model.cell}-{method}")
            found = {way: throughput(cell, model, way, group, folder, folder / name) for way in ARRANGEMENTS}
            if group.first:
                record = {"round": round_, "model": name, "method": method, "images_per_second": found}
                with (folder / RECORDS).open("a") as lines:
                    lines.write(json.dumps(record) + "\n")


def throughput(cell: Cell, model: Model, arrangement: str, group: Group, state: Path, data: Path) -> float:
    """Images per second of both workers together."""
    clock = Clock(model.steps)
    job = setting.job(setting.with_batch(cell, global_batch(model, arrangement)), data, state / f"state-{group.rank}")
    dist.barrier()
    if arrangement in ("weak", "strong"):
        loop.run(job, group, should_stop=clock)
    elif arrangement == "apart" or group.first:
        loop.run(job, Group(), should_stop=clock)
    done = job.cell.experiment.batch_size / clock.seconds_per_step() if clock.times else 0.0
    return float(group.sum(torch.tensor(done, dtype=torch.float64)))


def measure(models: dict[str, Model], rounds: int) -> list[dict]:
    """One record per round, model and method."""
    from tools import ray_nodes

    with ray_nodes.cluster(further=1, cpus=1) as nodes, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, model in models.items():
            write_images(folder / name, model)
        os.environ |= {key: value for key, value in nodes.environment.items() if key.startswith("RAY_")}
        os.environ["RAY_ADDRESS"] = nodes.address
        with cluster.connected():
            _train({"models": models, "rounds": rounds, "folder": temporary})
        return [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]


def write_images(folder: Path, model: Model) -> None:
    """Writes enough images that one epoch holds all steps: at its end the loop would write a checkpoint."""
    setting.write_images(folder, model.shape, 2 * model.batch * (model.steps + WARM_UP + 2))


def _train(config: dict[str, Any]) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        work,
        train_loop_config=config,
        scaling_config=ScalingConfig(
            num_workers=2, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD"
        ),
        run_config=RunConfig(name="ddp", storage_path=f"{config['folder']}/ray"),
    ).fit()


def efficiencies(records: list[dict]) -> list[dict]:
    """Efficiencies of each model and method, medians over the rounds."""
    rows = []
    for model, method in dict.fromkeys((record["model"], record["method"]) for record in records):
        found = [r["images_per_second"] for r in records if (r["model"], r["method"]) == (model, method)]
        ratios = {
            arrangement: statistics.median(efficiency(one, arrangement) for one in found)
            for arrangement in ARRANGEMENTS[1:]
        }
        alone = statistics.median(one["alone"] for one in found)
        rows.append({"model": model, "method": method, "rounds": len(found), "alone": alone, **ratios})
    return rows


def markdown(document: dict) -> str:
    lines = [
        "| network | method | images/s of one | two apart | two, weak | two, strong |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in efficiencies(document["records"]):
        cells = " | ".join(f"{row[arrangement]:.2f}" for arrangement in ARRANGEMENTS[1:])
        lines.append(f"| {row['model']} | {row['method']} | {row['alone']:.0f} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=4, help="rounds over all arrangements (default: 4)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file for the figures")
    arguments = parser.parse_args()
    cluster.configure()
    document = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__,
        "batch": {name: MODELS[name].batch for name in arguments.models},
        "records": measure({name: MODELS[name] for name in arguments.models}, arguments.rounds),
    }
    write(arguments.output, document)
    print(markdown(document))


if __name__ == "__main__":
    main()
