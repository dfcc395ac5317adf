"""Subjects to measure: a model, a method, a mode of running it, and a step of inference or training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi

MODELS: dict[str, tuple[Callable[..., nn.Module], tuple[int, int, int]]] = {
    "lenet": (mnvi.models.lenet, (1, 28, 28)),
    "all_cnn": (mnvi.models.all_cnn, (3, 32, 32)),
    "resnet18": (lambda dropout=0.0: mnvi.models.resnet18(10, stem="cifar", dropout=dropout), (3, 32, 32)),
}
METHODS = ("deterministic", "mnvi", "mnvi_factored", "mfvi", "mc_dropout")
MODES = ("eager", "channels_last", "compiled")
FOLDED = ("folded", "folded, channels_last")  # optimised for inference without the compiler


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

    def __post_init__(self) -> None:
        self.net = self._network()
        _, shape = MODELS[self.model]
        x, y = torch.randn(self.batch, *shape), torch.randint(10, (self.batch,))
        if self.mode not in ("eager", "folded"):
            x = x.to(memory_format=torch.channels_last)
        self.step = self._inference(x) if self.quantity == "inference" else self._training(x, y)

    def record(self, **figures: float) -> dict:
        return {
            "model": self.model, "method": self.method, "mode": self.mode, "quantity": self.quantity, **figures,
        }  # fmt: skip

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        out = self.net(x)
        if self.method in ("deterministic", "mc_dropout"):
            return F.cross_entropy(out if isinstance(out, Tensor) else out.values.flatten(0, 1), y)
        return self._elbo(out, y, mnvi.kl_divergence(self.net)).loss

    def _network(self) -> nn.Module:
        torch.manual_seed(0)
        build, _ = MODELS[self.model]
        net = build(dropout=0.1) if self.method == "mc_dropout" else build()
        if self.method == "mnvi":
            net = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-3))
        if self.method == "mnvi_factored":
            net = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-3, variance="factored"))
        if self.method == "mfvi":
            net = mnvi.convert(net, mnvi.MeanField(prior_variance=1e-3))
        if self.mode not in ("eager", "folded"):
            net = net.to(memory_format=torch.channels_last)
        self._elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(num_samples=64), num_data=50_000, kappa=0.01)
        return net

    def _inference(self, x: Tensor) -> Callable[[], None]:
        """Inference as a user would deploy it; "compiled" optimises and compiles the network, "folded" optimises it."""
        net = self.net.eval()
        if self.method == "mc_dropout":
            net = mnvi.mc_dropout(net, num_samples=8).eval()
            net = torch.compile(net) if self.mode == "compiled" else net
        elif self.mode == "compiled" or self.mode in FOLDED:
            net = mnvi.optimize_for_inference(
                net,
                compile=self.mode == "compiled",
                channels_last=self.mode != "folded",
                variance="factored" if self.method == "mnvi_factored" else None,
            )

        def step() -> None:
            with torch.no_grad():
                net(x)

        return step

    def _training(self, x: Tensor, y: Tensor) -> Callable[[], None]:
        self.net.train()
        loss = torch.compile(self.loss, backend=self.backend) if self.mode == "compiled" else self.loss
        self.forward = lambda: loss(x, y)

        def step() -> None:
            loss(x, y).backward()

        return step
