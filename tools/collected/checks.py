"""What a network must do to count as working."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import mnvi
from tools.collected.subject import Builder, Subject

NO_NOISE = -90.0
# Largest deviation of the mean without noise, relative to the output's scale.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
POSTERIOR = mnvi.MultiplicativeNoise(prior_variance=1e-2)


class Failed(Exception):
    """A check failed: the stage, and the reason in the words of the error."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(f"{stage}: {reason}")
        self.stage, self.reason = stage, reason


@contextmanager
def stage(name: str) -> Iterator[None]:
    try:
        yield
    except Failed:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or repr(error)
        text = re.sub(r"[^\s(]*/site-packages/", "", text)  # where packages are installed here
        raise Failed(name, f"{type(error).__name__}: {text}") from error


def examine(build: Builder) -> dict[str, Any]:
    """Try one network: its record if all checks pass; raises :class:`Failed`."""
    started = time.perf_counter()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the collections, and mnvi's about weights that stay deterministic
        with stage("the network itself"):
            subject = build()
            net = subject.net
            _wake(subject)
        with stage("convert"):  # before a backward pass: some networks keep values with their graph
            bayesian = mnvi.convert(net, POSTERIOR)
        with stage("the network itself"):
            learns = _parameters_that_learn(subject)
        for training in (True, False):
            _forward_and_backward(subject, bayesian, training, learns)
        with stage("mean without noise"):
            dtype, error, variance = _without_noise(subject, bayesian)
            assert error < TOLERANCES[dtype], f"the mean is off by {error:.1e}"
            assert variance < TOLERANCES[dtype] ** 2, f"the variance is {variance:.1e}"
        dependent = _dependent(subject, bayesian, dtype)
    parameters = sum(p.numel() for p in net.parameters())
    weights = {id(layer.stored_weight): layer.weight.numel() for layer in mnvi.bayesian_layers(bayesian)}
    return {
        "works": True,
        "parameters": parameters,
        "added": sum(p.numel() for p in bayesian.parameters()) - parameters,
        "layers": len(mnvi.bayesian_layers(bayesian)),
        "share": sum(weights.values()) / parameters,
        "size": subject.size,
        "precision": str(dtype).removeprefix("torch."),
        "error_without_noise": error,
        "variance_without_noise": variance,
        "dependent": dependent,
        "seconds": round(time.perf_counter() - started, 1),
    }


def dependent(build: Builder) -> list[str]:
    """Only the lines at which one network's values count as independent although they are not."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject = build()
        return _dependent(subject, mnvi.convert(subject.net, POSTERIOR))


@torch.no_grad()
def _dependent(subject: Subject, bayesian: nn.Module, dtype: torch.dtype = torch.float32) -> list[str]:
    """Functions and lines that ``mnvi.DependenceWarning`` names in evaluation mode."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", mnvi.DependenceWarning)
        subject.run(bayesian.eval(), dtype)
    return sorted({_place(warning) for warning in caught})


def _place(warning: warnings.WarningMessage) -> str:
    function, file = str(warning.message).partition(":")[0], warning.filename.rpartition("site-packages/")[2]
    return f"{function} ({file}, line {warning.lineno})"


@torch.no_grad()
def _wake(subject: Subject) -> None:
    """Makes a signal reach the output; without one, every check would be empty.

    Some layers start with weights of zero, and an untrained batch norm without statistics of its data lets signals die
    out.
    """
    for name, parameter in subject.net.named_parameters():
        if not parameter.any() and not name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    for module in subject.net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None  # a running mean over all batches, so that one batch is enough
    subject.run(subject.net.train())


def _loss(outputs: list[Any]) -> Tensor:
    terms = [out.mean.square().mean() + out.var.mean() for out in outputs if isinstance(out, mnvi.Gaussian)]
    return torch.stack(terms or [out.square().mean() for out in outputs]).sum()


def _parameters_that_learn(subject: Subject) -> set[str]:
    """Parameters that get a gradient in the network itself, in evaluation mode, where nothing is left out at random."""
    subject.net.eval().zero_grad()
    _loss(subject.run(subject.net)).backward()
    found = {name for name, p in subject.net.named_parameters() if p.grad is not None}
    subject.net.zero_grad()
    return found


def _forward_and_backward(subject: Subject, bayesian: nn.Module, training: bool, learns: set[str]) -> None:
    mode = "training" if training else "evaluation"
    bayesian.train(training).zero_grad()
    with stage(f"forward, {mode}"):
        outputs = subject.run(bayesian)
        gaussians = [out for out in outputs if isinstance(out, mnvi.Gaussian)]
        assert gaussians, "no output is a Gaussian"
        for out in gaussians:
            assert out.mean.isfinite().all() and out.var.isfinite().all(), "the output is not finite"
            assert (out.var >= 0).all() and out.var.max() > 0, "the variance is not positive"
    with stage(f"backward, {mode}"):
        _loss(outputs).backward()
        gradients = {name: p.grad for name, p in bayesian.named_parameters() if p.grad is not None}
        wild = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        assert not wild, f"the gradient of {wild[0]} is not finite"
        lost = sorted(learns & {name for name, _ in bayesian.named_parameters()} - set(gradients))
        assert not lost, f"{lost[0]} gets no gradient"


@torch.no_grad()
def _without_noise(subject: Subject, bayesian: nn.Module) -> tuple[torch.dtype, float, float]:
    """Precision, largest deviation of the mean and largest variance, relative to the scale of the network's output.

    In float64 where the network itself allows it: deep networks with random weights amplify rounding errors.
    """
    net = subject.net.eval()
    bayesian.train()  # forgets values that were kept in evaluation mode
    dtype = torch.float64
    try:
        expected = subject.run(net.double(), dtype)
    except (RuntimeError, TypeError):
        dtype = torch.float32
        expected = subject.run(net.float())
    bayesian.zero_grad()
    bayesian.to(dtype).eval()
    bayesian.load_state_dict(net.state_dict(), strict=False)  # training mode moved the batch norms' statistics
    for name, parameter in bayesian.named_parameters():
        if name.endswith("rho"):
            parameter.fill_(NO_NOISE)
    outputs = subject.run(bayesian, dtype)
    assert len(outputs) == len(expected), f"{len(outputs)} outputs instead of {len(expected)}"
    error = variance = 0.0
    for out, right in zip(outputs, expected, strict=True):
        mean = out.mean if isinstance(out, mnvi.Gaussian) else out
        scale = right.abs().max().clamp(min=1e-30)
        error = max(error, float((mean - right).abs().max() / scale))
        if isinstance(out, mnvi.Gaussian):
            variance = max(variance, float(out.var.max() / scale.square()))
    return dtype, error, variance
