"""A model of how training ResNet18 on ImageNet scales to many GPUs, with every input named.

We had no GPU: bytes and the ratios between methods are measured (benchmarks/results); the rest is assumed. Replace the
assumptions with figures of your machine.

    python -m benchmarks.scaling.model
    python -m benchmarks.scaling.model --images-per-second 3000 --node-gbit 400 --gpus 8 128

A step of one of n GPUs takes

    T(n) = straggling(n) · compute + max(0, all_reduce(n) − overlap · backward)

    compute        = images / images_per_second · ratio of the method + KL and update, whatever the batch
    all_reduce(n)  = 2 (m−1)/m · bytes / bandwidth + 2 (m−1) · latency, a ring of m members:
                     first within each node (m = its GPUs), then between the nodes (m = nodes, bandwidth of a node)
    straggling(n)  = 1 + jitter · sqrt(2 ln n): all wait for the slowest of n steps, which vary by `jitter`

and efficiency is images per second divided by n times those of a single GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, fields

from benchmarks.scaling import steps

GPUS = (1, 8, 64, 512)


@dataclass(frozen=True)
class Inputs:
    """Assumptions about the machines; the defaults describe nodes of eight GPUs on a 100 Gbit/s network."""

    images_per_second: float = 2500.0  # of one GPU, training the deterministic network
    batch: int = 128  # images per step and GPU
    gpus_per_node: int = 8
    gpu_gbyte: float = 100.0  # GB/s between two GPUs of a node
    gpu_latency: float = 5e-6  # seconds per message
    node_gbit: float = 100.0  # Gbit/s between nodes, shared by the GPUs of a node
    node_latency: float = 30e-6
    overlap: float = 0.7  # share of the backward pass that can hide the sending of gradients
    jitter: float = 0.02  # standard deviation of a step's time over its mean
    image_kbyte: float = 27.0  # kB of a photograph in the shards (measured: benchmarks.scaling.loading)
    images_per_core: float = 526.0  # images per second that a core reads, decodes and crops (measured there)


@dataclass(frozen=True)
class Method:
    """A method's measured step, relative to the deterministic network's."""

    name: str
    ratio: float  # of forward and backward pass, without the KL
    backward: float  # share of the backward pass in both
    fixed: float  # time of KL and update divided by that of the deterministic network's passes for one image
    bytes: int  # all-reduced


def methods(document: dict) -> list[Method]:
    """Reads the methods from the output of `python -m benchmarks.scaling.steps`."""
    records = {record["method"]: record for record in document["records"]}

    def passes(record: dict) -> float:
        times = record["milliseconds"]
        return float(times["forward"] + times["backward"] - times["kl"])

    plain = passes(records["deterministic"])
    return [
        Method(
            name,
            ratio=passes(record) / plain,
            backward=record["milliseconds"]["backward"]
            / (record["milliseconds"]["forward"] + record["milliseconds"]["backward"]),
            fixed=(record["milliseconds"]["kl"] + record["milliseconds"]["update"]) / plain * document["batch"],
            bytes=record["bytes"],
        )
        for name, record in records.items()
    ]


def ring(members: int, size: float, bandwidth: float, latency: float) -> float:
    """Seconds that an all-reduce takes in a ring; bandwidth in bytes per second."""
    return 2 * (members - 1) / members * size / bandwidth + 2 * (members - 1) * latency


def all_reduce(gpus: int, size: float, given: Inputs) -> float:
    within = min(gpus, given.gpus_per_node)
    nodes = math.ceil(gpus / given.gpus_per_node)
    inside = ring(within, size, given.gpu_gbyte * 1e9, given.gpu_latency)
    return inside + ring(nodes, size, given.node_gbit / 8 * 1e9, given.node_latency)


def step(gpus: int, batch: float, method: Method, given: Inputs) -> float:
    """Seconds per step."""
    passes = batch * method.ratio / given.images_per_second
    compute = passes + method.fixed / given.images_per_second
    sending = all_reduce(gpus, method.bytes, given) if gpus > 1 else 0.0
    straggling = 1 + given.jitter * math.sqrt(2 * math.log(gpus))
    return straggling * compute + max(0.0, sending - given.overlap * method.backward * passes)


def efficiency(gpus: int, method: Method, given: Inputs, global_batch: int | None = None) -> float:
    """Efficiency relative to one GPU with its full batch; the batch is fixed per GPU or, if given, globally."""
    one = given.batch / step(1, given.batch, method, given)
    batch = given.batch if global_batch is None else global_batch / gpus
    return batch / step(gpus, batch, method, given) / one


def markdown(found: list[Method], given: Inputs, gpus: tuple[int, ...] = GPUS) -> str:
    fixed = given.batch * given.gpus_per_node
    lines = [
        f"| GPUs | method | images/s | global batch | all-reduce | efficiency, {given.batch} images a GPU "
        f"| efficiency, {fixed:,} images in all | hours of 60 epochs | read in the first epoch | loader cores a GPU |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for number in gpus:
        for method in found:
            weak, strong = efficiency(number, method, given), efficiency(number, method, given, fixed)
            batch, seconds = given.batch * number, step(number, given.batch, method, given)
            rate, hours = batch / seconds, 60 * math.ceil(steps.IMAGES / batch) * seconds / 3600
            together = f"{strong:.2f}" if number >= given.gpus_per_node else "–"  # more than a GPU's memory holds
            sending = f"{all_reduce(number, method.bytes, given) * 1e3:.1f} ms" if number > 1 else "–"
            read, cores = rate * given.image_kbyte / 1e3, rate / number / given.images_per_core
            lines.append(
                f"| {number} | {method.name} | {rate:,.0f} | {batch:,} | {sending} | {weak:.2f} | {together} "
                f"| {hours:.2f} | {read:,.0f} MB/s | {cores:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Inputs):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default, help=f"default: {field.default}")
    parser.add_argument("--gpus", type=int, nargs="+", default=list(GPUS))
    arguments = vars(parser.parse_args())
    gpus = tuple(arguments.pop("gpus"))
    print(markdown(methods(json.loads(steps.RESULTS.read_text())), Inputs(**arguments), gpus))


if __name__ == "__main__":
    main()
