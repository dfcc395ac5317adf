"""Subjects to measure: a model, a method, a mode of running it, and a step of inference or training.

smfvi is shared mean field, mc_dropout has 8 samples, an ensemble 5 members; other packages: ``rivals.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi
from benchmarks.rivals import RIVALS, Made, made
from mnvi.moments._torch import compiler_options


def mobilenet_v3_small(dropout: float = 0.0) -> nn.Module:
    from mnvi._torchvision import torchvision

    net: nn.Module = torchvision.models.mobilenet_v3_small(num_classes=10, dropout=dropout)
    return net


MODELS: dict[str, tuple[Callable[..., nn.Module], tuple[int, int, int]]] = {
    "lenet": (mnvi.models.lenet, (1, 28, 28)),
    "all_cnn": (mnvi.models.all_cnn, (3, 32, 32)),
    "resnet18": (lambda dropout=0.0: mnvi.models.resnet18(10, stem="cifar", dropout=dropout), (3, 32, 32)),
    "mobilenet_v3_small": (mobilenet_v3_small, (3, 224, 224)),
}
OWN = ("deterministic", "mnvi", "mnvi_factored", "mfvi", "smfvi", "mc_dropout", "ensemble")
METHODS = (*OWN, *RIVALS)
MODES = ("eager", "channels_last", "compiled")  # of the deterministic network
BOTH = ("eager", "compiled")  # of the others
FOLDED = ("folded", "folded, channels_last")  # optimised for inference without the compiler
DIVIDES_ONLY = "aot_eager_decomp_partition"  # decides what to keep as the default backend does, and compiles nothing


@dataclass
class Subject:
    """One thing to time; ``step`` does it once."""

    model: str
    method: str
    mode: str
    quantity: str
    batch: int
    backend: str = "inductor"  # of torch.compile, in the mode "compiled" of a training step
    step: Callable[[], None] = field(init=False)
    net: nn.Module = field(init=False)
    _rival: Made | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        _, shape = MODELS[self.model]
        torch.manual_seed(0)
        x, y = torch.randn(self.batch, *shape), torch.randint(10, (self.batch,))
        self.net = self._network(x, y)
        x = x.to(memory_format=self._layout)
        self.step = self._inference(x) if self.quantity == "inference" else self._training(x, y)

    def record(self, **figures: float) -> dict:
        return {
            "model": self.model, "method": self.method, "mode": self.mode, "quantity": self.quantity, **figures,
        }  # fmt: skip

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self._rival is not None:
            return self._rival.loss(x, y)
        out = self.net(x)
        if self.method in ("deterministic", "mc_dropout"):
            return F.cross_entropy(out, y)
        if self.method == "ensemble":
            return F.cross_entropy(out.values.flatten(0, 1), y.repeat(len(out.values)))
        return self._elbo(out, y, mnvi.kl_divergence(self.net)).loss

    def _network(self, x: Tensor, y: Tensor) -> nn.Module:
        torch.manual_seed(0)
        build, _ = MODELS[self.model]
        net = build(dropout=0.1) if self.method == "mc_dropout" else build()
        if self.method in RIVALS:
            self._rival = made(self.method, net.train(self.quantity != "inference"), x, y)
            return self._rival.net.to(memory_format=self._layout)
        if self.method == "mnvi":
            net = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-3))
        if self.method == "mnvi_factored":
            net = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-3, variance="factored"))
        if self.method == "mfvi":
            net = mnvi.convert(net, mnvi.MeanField(prior_variance=1e-3))
        if self.method == "smfvi":
            net = mnvi.convert(net, mnvi.SharedMeanField(prior_variance=1e-3))
        if self.method == "ensemble":
            net = mnvi.Ensemble.of(build, num_members=5, seed=0)
        self._elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(num_samples=64), num_data=50_000, kappa=0.01)
        return net.to(memory_format=self._layout)

    @property
    def _layout(self) -> torch.memory_format:
        return torch.contiguous_format if self.mode in ("eager", "folded") else torch.channels_last

    def _inference(self, x: Tensor) -> Callable[[], None]:
        """Inference as a user would deploy it; "compiled" optimises and compiles the network, "folded" optimises it."""
        predict: Callable[[Tensor], object] = self.net.eval()
        if self.method == "mc_dropout":
            predict = mnvi.mc_dropout(self.net, num_samples=8).eval()
        if self._rival is not None:
            predict = self._rival.predict
        if self._rival is not None or self.method in ("mc_dropout", "ensemble"):
            predict = torch.compile(predict) if self.mode == "compiled" else predict
        elif self.mode == "compiled" or self.mode in FOLDED:
            predict = mnvi.optimize_for_inference(
                self.net,
                compile=self.mode == "compiled",
                channels_last=self.mode != "folded",
                variance="factored" if self.method == "mnvi_factored" else None,
            )

        def step() -> None:
            with torch.no_grad():
                predict(x)

        return step

    def _training(self, x: Tensor, y: Tensor) -> Callable[[], None]:
        self.net.train()
        loss: Callable[[Tensor, Tensor], Tensor] = self.loss
        if self.mode == "compiled":
            options = compiler_options() if self.backend == "inductor" else None  # as mnvi.Objective.compile
            loss = torch.compile(self.loss, backend=self.backend, options=options)
        self.forward = lambda: loss(x, y)

        def step() -> None:
            loss(x, y).backward()

        return step
