"""The parts of the check. Each yields lines for the report, and raises an error if something is wrong.

Training runs in the study's own loop, with the study's own cells, on images of noise.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import mnvi
from benchmarks.scaling import setting, steps
from pipeline.images import devices, loop, objectives
from pipeline.images import job as jobs
from pipeline.images.group import Group
from pipeline.images.job import Job
from pipeline.images.loop import HALF, Position

STEPS, WARM_UP = 8, 2
CHANNELS_LAST = devices.Manner(compiled=False, layout=torch.channels_last, read_every=1)
READ_EVERY = 2  # steps between two looks at the losses: a training that is stopped stops inside an epoch


class Wrong(AssertionError):
    """Something does not work on this device."""


@dataclass(frozen=True)
class Setting:
    """Sizes of the check on a device.

    Args:
        cell: of the images study, without the method: what half precision and the compiler are tried on.
        shape: of this cell's images.
        batch: images of a step of the trainings.
        photos: images of a step of ResNet18 for ImageNet, whose speed is measured.
        pixels: side of these images.
        rounds: timed steps.
        tolerance: largest relative difference of weights that a training moved in two ways; of no bit on a CPU.
    """

    device: str
    cell: str
    shape: tuple[int, int, int]
    batch: int
    photos: int
    pixels: int
    rounds: int
    tolerance: float

    @property
    def workers(self) -> int:
        return torch.cuda.device_count() if self.on_gpu else 2

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def alone(self) -> Group:
        return Group(device=self.place)

    @property
    def place(self) -> torch.device:
        return torch.device(self.device)


Part = Callable[[Setting, Path], Iterator[str]]
SETTINGS = {
    "cuda": Setting("cuda", "resnet18-cifar10", (3, 32, 32), 128, 128, 224, 20, tolerance=0.05),
    "cpu": Setting("cpu", "lenet-mnist", (1, 28, 28), 8, 2, 32, 1, tolerance=0.0),
}


def moments(at: Setting, folder: Path) -> Iterator[str]:
    """Means and variances on the device beside those of a CPU in float64."""
    del folder
    torch.backends.cudnn.allow_tf32 = False
    nets = {"lenet": (mnvi.models.lenet, (1, 28, 28)), "resnet20": (mnvi.models.resnet20, (3, 32, 32))}
    for name, (make, shape) in nets.items():
        for posterior in (mnvi.MultiplicativeNoise(1e-4), mnvi.MeanField(1e-4), mnvi.SharedMeanField(1e-4)):
            torch.manual_seed(0)
            net, x = mnvi.convert(make(10), posterior).eval(), torch.randn(4, *shape)
            with torch.no_grad():
                found = net.to(at.place)(x.to(at.place))
                expected = net.cpu().double()(x.double())
            yield _compared(f"{name}, {type(posterior).__name__}", (found.mean, found.var), expected, 1e-3)


def half(at: Setting, folder: Path) -> Iterator[str]:
    """An epoch in float16 and in bfloat16 beside one in float32."""
    losses = {}
    for precision in ("float32", *HALF):
        losses[precision] = _loss(at, _job(at, folder, precision, precision=precision))
        yield f"{precision}: mean loss of an epoch {losses[precision]:.4f}"
    worst = max(abs(losses[precision] / losses["float32"] - 1) for precision in HALF)
    _require(worst < 0.05, f"losses in half precision are off by {worst:.1%}; expected less than 5 %")


def compiled(at: Setting, folder: Path) -> Iterator[str]:
    """An epoch that is compiled beside one that is not."""
    eager, fast = (_loss(at, _job(at, folder, f"compile-{on}", compile=on)) for on in (False, True))
    yield f"mean loss of an epoch: eager {eager:.5f}, compiled {fast:.5f}"
    _require(abs(fast / eager - 1) < 0.01, "the losses differ by more than 1 %")


def resume(at: Setting, folder: Path) -> Iterator[str]:
    """A training that is stopped inside an epoch and resumes, beside one that is not stopped."""
    devices.READ_EVERY = READ_EVERY
    whole, stopped = (_job(at, folder, state) for state in ("whole", "stopped"))
    looks = itertools.count(1)
    position = loop.run(stopped, at.alone, should_stop=lambda: next(looks) == 2)
    _require(position.step > 0, "the training was not stopped inside its epoch")
    yield f"stopped after {position.step} of {STEPS} steps"
    yield _moved_alike(whole, loop.run(stopped, at.alone), loop.run(whole, at.alone), at.tolerance)


def export(at: Setting, folder: Path) -> Iterator[str]:
    """Files written from a network on the device give the network's means and variances."""
    torch.manual_seed(0)
    net = mnvi.convert(mnvi.models.lenet(), mnvi.MultiplicativeNoise(1e-4)).eval().to(at.place)
    x = torch.randn(4, 1, 28, 28, device=at.place)
    with torch.no_grad():
        expected = net(x)
        mnvi.export(net, folder / "net.pt2", x)
        yield _compared(".pt2", torch.export.load(folder / "net.pt2").module()(x), expected, 1e-3)
        mnvi.export(net, folder / "net.onnx", x)
    session = importlib.import_module("onnxruntime").InferenceSession(folder / "net.onnx")
    mean, var = session.run(None, {"input": x.cpu().numpy()})
    yield _compared(".onnx, run on the CPU", (torch.from_numpy(mean), torch.from_numpy(var)), expected, 1e-3)


def speed(method: str) -> Part:
    """Images per second of a training step of ResNet18 for ImageNet, channels-last, and its memory."""

    def measured(at: Setting, folder: Path) -> Iterator[str]:
        del folder
        devices.set_up(at.place)
        for precision in ("float32", "bfloat16"):
            for compiles in (False, True) if at.on_gpu else (False,):
                objective = steps.objective(method).to(at.place)
                CHANNELS_LAST.lay_out(objective)
                if compiles:
                    objective.compile()
                rate = _images_per_second(at, at.place, objective, HALF.get(precision))
                how = "compiled" if compiles else "eager"
                memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if at.on_gpu else ""
                yield f"{precision}, {how}: {rate:,.1f} images/s with {at.photos} images a step{memory}"

    return measured


def ddp(at: Setting, folder: Path) -> Iterator[str]:
    """All GPUs train one network, beside one GPU alone; the speed of an all-reduce and of a step of all."""
    job = _job(at, folder, "alone", method="deterministic")
    alone = loop.run(job, at.alone)
    spawn(_work, (at, folder), nprocs=at.workers)
    together, lines = torch.load(folder / "together", weights_only=True)
    yield from lines
    yield _moved_alike(job, Position(**together), alone, max(at.tolerance, 1e-3))


PARTS: dict[str, Part] = {
    "moments": moments,
    "half": half,
    "compile": compiled,
    "resume": resume,
    "export": export,
    "speed-deterministic": speed("deterministic"),
    "speed-mnvi": speed("mnvi"),
    "ddp": ddp,
}


def _work(rank: int, at: Setting, folder: Path) -> None:
    """What each worker of :func:`ddp` does."""
    device = torch.device("cuda", rank) if at.on_gpu else at.place
    if at.on_gpu:
        torch.cuda.set_device(device)
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("nccl" if at.on_gpu else "gloo", init_method=meeting, rank=rank, world_size=at.workers)
    group = Group.joined(device)
    # Batch norms see the images of all workers, as those of one worker alone do. Networks that sample would not.
    together = loop.run(_job(at, folder, "together", method="deterministic", sync=True), group)
    objective = steps.objective("mnvi").to(device)
    CHANNELS_LAST.lay_out(objective)
    gradients = torch.zeros(objectives.num_parameters(objective), device=device)
    seconds = _seconds(at, lambda: group.sum(gradients))
    apart = _images_per_second(at, device, objective, None)
    model = group.wrap(objective) if group.size > 1 else DistributedDataParallel(objective)
    rate = _images_per_second(at, device, model, None)
    lines = [
        f"{dist.get_backend()}, {group.size} workers: an all-reduce of {gradients.nbytes / 1e6:.1f} MB takes "
        f"{1e3 * seconds:.2f} ms",
        f"mnvi, float32, eager: {group.size * rate:,.1f} images/s together, {group.size * apart:,.1f} apart",
    ]
    if group.first:
        torch.save((vars(together), lines), folder / "together")
    dist.destroy_process_group()


def _job(at: Setting, folder: Path, state: str, *, method: str = "mnvi", sync: bool = False, **resources: Any) -> Job:
    """One epoch of a few steps, from the state of this name on."""
    cell = setting.images_study().cell(f"{at.cell}-{method}")
    # Adam's first steps would turn rounding errors of small gradients into steps of full length.
    small = {"epochs": 1, "batch_size": at.batch, "optimizer": "sgd", "learning_rate": 0.01, "sync_batch_norm": sync}
    chosen = replace(cell.resources, gpu=at.on_gpu, **{"compile": False, **resources})
    data = folder / "images"
    if not data.exists():
        setting.write_images(data, at.shape, STEPS * at.batch)
    cell = replace(cell, experiment=replace(cell.experiment, **small), resources=chosen)
    return replace(setting.job(cell, data, folder / f"state-{state}"), checkpoint_steps=1)


def _loss(at: Setting, job: Job) -> float:
    return float(loop.run(job, at.alone).history[0]["loss"])


def _images_per_second(at: Setting, device: torch.device, model: nn.Module, half: torch.dtype | None) -> float:
    """Of one worker."""
    x = CHANNELS_LAST.laid_out(torch.randn(at.photos, 3, at.pixels, at.pixels, device=device))
    y = torch.randint(steps.CLASSES, (at.photos,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9, fused=True)

    def step() -> None:
        with torch.autocast(at.device, half) if half else nullcontext():
            loss = model(x, y).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return at.photos / _seconds(at, step)


def _seconds(at: Setting, work: Callable[[], Any]) -> float:
    """Of one call, when the device has done it."""
    wait = torch.cuda.synchronize if at.on_gpu else lambda: None
    for _ in range(WARM_UP):
        work()
    wait()
    start = time.perf_counter()
    for _ in range(at.rounds):
        work()
    wait()
    return (time.perf_counter() - start) / at.rounds


def _compared(what: str, found: tuple[Tensor, Tensor], expected: mnvi.Gaussian, tolerance: float) -> str:
    mean, var = (_off(one, other) for one, other in zip(found, (expected.mean, expected.var), strict=True))
    line = f"{what}: means off by {mean:.1e}, variances by {var:.1e} (relative norm)"
    _require(max(mean, var) < tolerance, f"{line}; expected less than {tolerance:g}")
    return line


@torch.no_grad()
def _moved_alike(job: Job, found: Position, expected: Position, tolerance: float) -> str:
    """Compares how far two trainings have moved from the weights that both started from."""
    net = jobs.objective(job).net
    assert isinstance(net, nn.Module)
    start = nn.utils.parameters_to_vector(net.parameters())
    moved = []
    for position in (found, expected):
        net.load_state_dict(position.best_weights)
        moved.append(nn.utils.parameters_to_vector(net.parameters()) - start)
    off = _off(*moved)
    line = f"weights moved by {float(moved[1].norm()):.3g}, and by the same up to {off:.1e} of it"
    _require(off <= tolerance, f"{line}; expected at most {tolerance:g}")
    return line


def _off(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    return float((found - expected).norm() / expected.norm())


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Wrong(otherwise)
