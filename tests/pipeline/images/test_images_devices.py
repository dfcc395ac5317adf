"""What a GPU would do, as far as a CPU shows it: losses read seldom, channels-last weights, no waiting in a step."""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from image_study import make_cell, make_job
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline import compiler
from pipeline.data.imagesets import load_images
from pipeline.images import devices, loop
from pipeline.images import job as jobs
from pipeline.images.batches import Ahead
from pipeline.images.devices import Manner
from pipeline.images.group import Group
from pipeline.images.job import Job
from pipeline.images.loop import Loop, Position

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(method: str, state: str) -> Position:
    return loop.run(make_job(make_cell(method), state), Group())


def use(monkeypatch: pytest.MonkeyPatch, manner: Manner) -> None:
    monkeypatch.setattr(devices, "manner", lambda cell, device: manner)


@pytest.mark.parametrize("read_every", (2, 50))
def test_losses_that_are_read_seldom_are_the_same(read_every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained("mnvi", "often")
    use(monkeypatch, Manner(False, torch.contiguous_format, read_every))
    found = trained("mnvi", "seldom")
    for one, other in zip(found.history, expected.history, strict=True):
        for key in ("loss", "nll", "kl"):
            assert one[key] == pytest.approx(other[key], rel=1e-12), key
        assert one["validation_nll"] == other["validation_nll"]
    for name, value in expected.best_weights.items():
        assert torch.equal(found.best_weights[name], value), name


def test_a_loss_that_is_not_finite_is_found_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Manner(False, torch.contiguous_format, 2))
    wild = {"optimizer": "sgd", "learning_rate": 1e30, "clip": None}
    job = make_job(make_cell("deterministic", experiment=wild))
    with pytest.raises(loop.Diverged, match=r"loss became nan in epoch 1, step [23]; there is no checkpoint yet"):
        loop.run(job, Group())


@pytest.mark.parametrize("method", ("mnvi", "mfvi", "deterministic"))
def test_channels_last_trains_alike(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = {
        "mfvi": {"hyperparameters": {"kappa_over_n": 1e-6, "prior_variance": 1e-3}},
        "mnvi": {},
        "deterministic": {},
    }
    methods["mnvi"] = methods["mfvi"]
    cell = make_cell(method, experiment={"methods": methods, "epochs": 1})
    expected = loop.run(make_job(cell, "contiguous"), Group())
    use(monkeypatch, Manner(False, torch.channels_last, 1))
    net = loop_of(make_job(cell, "looked at")).objective.net
    assert isinstance(net, torch.nn.Module)
    spatial = [one for one in net.parameters() if one.dim() == 4 and one.shape[1] > 1]
    assert spatial and all(one.is_contiguous(memory_format=torch.channels_last) for one in spatial)
    found = loop.run(make_job(cell, "channels last"), Group())
    assert found.history[-1]["loss"] == pytest.approx(expected.history[-1]["loss"], rel=1e-4)


def test_gradients_have_the_strides_of_their_weights() -> None:
    """DDP would copy each gradient whose strides differ from its weight's."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 1))
    manner = Manner(False, torch.channels_last, 1)
    manner.lay_out(net)
    net(manner.laid_out(torch.randn(2, 3, 8, 8))).sum().backward()
    for weight in (net[0].weight, net[1].weight):
        assert isinstance(weight, torch.Tensor) and weight.grad is not None
        assert weight.grad.stride() == weight.stride()


def loop_of(job: Job) -> Loop:
    training, validation = (load_images(job.data.folder, part) for part in ("train", "validation"))
    return Loop(job, Group(), jobs.objective(job), training, validation)


class Waits(TorchDispatchMode):
    """Counts the operations that wait for a device's results."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ("mnvi", "deterministic"))
def test_a_step_between_two_looks_waits_for_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Manner(False, torch.channels_last, 2))
    # Labels are looked at only where that does not wait.
    monkeypatch.setattr("mnvi.likelihoods._classes.can_check_values", lambda labels: False)
    training = loop_of(make_job(make_cell(method)))
    for step, looks in ((0, False), (1, True)):
        training.at.step, parts = step, training.batches.parts(0, step)
        monkeypatch.setattr(Ahead, "parts", lambda *_, parts=parts: parts)
        reader = Ahead(training.batches)
        with Waits() as waits:
            assert training._step(reader, lambda: False)
        assert bool(waits.found) == looks, waits.found


def test_a_gpu_compiles_by_itself_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "available", lambda: True)

    def compiled(compile: object, device: torch.device = CUDA, **experiment: Any) -> bool:
        cell = make_cell(resources={"compile": compile, "gpu": device.type == "cuda"}, experiment=experiment)
        return devices.manner(cell, device).compiled

    assert compiled("auto") and compiled(True) and not compiled(False)
    assert not compiled("auto", sync_batch_norm=True)
    assert not compiled("auto", torch.device("cpu"))
    assert devices.manner(make_cell(resources={"gpu": True}), CUDA).layout == torch.channels_last
    monkeypatch.setattr(compiler, "available", lambda: False)
    assert not compiled("auto")


@pytest.mark.parametrize(
    ("asked", "on_gpu", "on_cpu"), [("auto", True, False), (True, True, True), (False, False, False)]
)
def test_channels_come_last_on_a_gpu_or_where_asked(asked: object, on_gpu: bool, on_cpu: bool) -> None:
    cell = make_cell(resources={"channels_last": asked})
    for device, last in ((CUDA, on_gpu), (torch.device("cpu"), on_cpu)):
        assert devices.manner(cell, device).layout == (torch.channels_last if last else torch.contiguous_format)


@pytest.mark.parametrize("largest", (0.05, -0.4, math.nan))
def test_gradients_are_clipped_as_torch_clips_them(largest: float) -> None:
    def layer() -> torch.nn.Linear:
        made = torch.nn.Linear(3, 2)
        made.weight.grad = torch.linspace(-0.04, 0.04, 6).view(2, 3)
        assert made.bias is not None
        made.bias.grad = torch.tensor([largest, 0.01])
        return made

    ours, theirs = layer(), layer()
    parameters = list(ours.parameters())
    torch.nn.utils.clip_grads_with_norm_(parameters, 0.1, devices.largest_gradient(parameters))
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1, norm_type=math.inf)
    for own, other in zip(parameters, theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_a_training_on_a_cpu_keeps_the_memory_that_its_steps_free() -> None:
    measure = """
import resource, torch
from pipeline.images import devices
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(4 << 20).add(1)  # two tensors of 16 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
returned = faults()
devices.set_up(torch.device("cpu"))
faults()
print(returned, faults())
"""
    run = subprocess.run([sys.executable, "-c", measure], capture_output=True, text=True, check=True)
    returned, kept = map(int, run.stdout.split())
    assert kept * 20 < returned
