"""Uncertainty for a network that is already trained: its weights stay, only noise and a temperature are chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from mnvi.conversion.converting import convert
from mnvi.conversion.copying import copied
from mnvi.layers.base import BayesianLayer, bayesian_layers
from mnvi.layers.registry import BAYESIAN
from mnvi.likelihoods import CategoricalLikelihood, Likelihood
from mnvi.methods.temperature import Tempered
from mnvi.posteriors import MultiplicativeNoise
from mnvi.values.gaussian import Gaussian

Batches = Iterable[tuple[Tensor, Tensor]]

NO_NOISE = -20.0  # ρ; α = 2·10⁻⁹ changes nothing in float32
_RHOS = (-9.0, -7.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0)
_TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
_SHRINK = (math.sqrt(5) - 1) / 2
_REFINEMENTS = 6
_LINEAR = 1e-3  # relative difference up to which an output's variance counts as proportional to the noise


@dataclass(frozen=True)
class Tuning:
    """What :func:`tune_noise` chose, and what it found on the data given to it.

    Attributes:
        layers: names of the layers with noise.
        rho: the noise parameter of all of them, :math:`\\alpha = \\log(1 + e^\\rho)`.
        temperature: T.
        nll_before: negative log-likelihood of the network without noise and temperature.
        nll_temperature: with the best temperature alone.
        nll: with noise and temperature.
        kept: share of examples whose most likely class is the one of the network before; None for regression.
    """

    layers: tuple[str, ...]
    rho: float
    temperature: float
    nll_before: float
    nll_temperature: float
    nll: float
    kept: float | None

    def __str__(self) -> str:
        kept = "" if self.kept is None else f"; {100 * self.kept:.1f} % of the predicted classes are kept"
        return (
            f"noise rho = {self.rho:.2f} in {', '.join(self.layers)}, temperature {self.temperature:.2f}: NLL "
            f"{self.nll_before:.4f} before, {self.nll_temperature:.4f} with a temperature alone, {self.nll:.4f} now"
            f"{kept}"
        )


class TunedNoise(Tempered):
    """A network from :func:`tune_noise`; ``tuning`` says what was chosen."""

    tuning: Tuning


def tune_noise(
    net: nn.Module,
    data: tuple[Tensor, Tensor] | Batches,
    *,
    layers: str = "last",
    likelihood: Likelihood | None = None,
    temperature: bool = True,
    seed: int = 0,
) -> TunedNoise:
    r"""Give a trained network uncertainty without training it again.

    One number of noise, the same :math:`\rho` for every chosen layer, and one temperature minimise the negative
    log-likelihood of the data given here. Use data that the network was not trained on; a few hundred examples are
    enough for two numbers. Weights, and with them the mean of the logits, stay as they are. Noise in the last layer
    alone is the default: noise that a network never saw in training costs accuracy when it passes through many layers
    before it softens predictions enough.

    The candidates include no noise and no temperature, so on the data given here the result is never worse than
    temperature scaling.

    Args:
        net: a trained network, which is copied, or one from :func:`mnvi.convert` with
            :class:`mnvi.MultiplicativeNoise`, whose noisy layers are then the chosen ones.
        data: inputs and targets, or batches of them, such as a ``DataLoader``.
        layers: "last", "all", or the pattern of layer names that :func:`mnvi.convert` takes.
        likelihood: :class:`mnvi.CategoricalLikelihood` by default.
        temperature: whether to choose a temperature, too.
        seed: of the samples with which the likelihood is computed.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
        >>> x, y = torch.randn(100, 2), torch.randint(3, (100,))
        >>> tuned = mnvi.tune_noise(net, (x, y))
        >>> tuned.tuning.layers, tuned.tuning.nll <= tuned.tuning.nll_temperature
        (('2',), True)
        >>> tuned(x).var.shape
        torch.Size([100, 3])
    """
    batches = [data] if isinstance(data, tuple) and isinstance(data[0], Tensor) else list(cast(Batches, data))
    if not batches:
        raise ValueError("tune_noise: data are empty; give inputs and targets that the network was not trained on")
    bayesian = _noisy(net, layers, batches[0][0]).eval()
    noisy = {name: layer for name, layer in bayesian.named_modules() if isinstance(layer, BayesianLayer)}
    y = torch.cat([targets for _, targets in batches])
    if likelihood is None:
        likelihood = CategoricalLikelihood(generator=torch.Generator(y.device))
    outputs = _Outputs(bayesian, list(noisy.values()), [inputs for inputs, _ in batches])
    search = _Search(outputs, likelihood, y, seed, _TEMPERATURES if temperature else (1.0,))

    before = search.nll(NO_NOISE, 1.0)
    tempered, plain_temperature = search.best_temperature(NO_NOISE)
    nll, rho, best = min((tempered, NO_NOISE, plain_temperature), search.best())
    outputs.set_noise(rho)
    tuned = TunedNoise(bayesian, best)
    kept = None
    if isinstance(likelihood, CategoricalLikelihood):
        plain, probs = outputs(NO_NOISE).mean.argmax(-1), search.predictive(rho, best).probs
        kept = float((plain == probs.argmax(-1)).double().mean())
    tuned.tuning = Tuning(tuple(noisy), rho, best, before, tempered, nll, kept)
    return tuned


def _noisy(net: nn.Module, layers: str, example: Tensor) -> nn.Module:
    """A copy with noise in the chosen layers, set so low that it changes nothing."""
    posterior = MultiplicativeNoise(prior_variance=1.0, init_rho=NO_NOISE)
    if bayesian_layers(net):
        others = [type(layer.posterior).__name__ for layer in bayesian_layers(net) if not _has_noise(layer)]
        if others:
            raise TypeError(
                f"tune_noise: the network has layers with {others[0]}; it tunes mnvi.MultiplicativeNoise: pass the "
                "deterministic network"
            )
        return copied("tune_noise", net)
    if layers == "all":
        return convert(net, posterior)
    return convert(net, posterior, only=_last_layer(net, example) if layers == "last" else layers)


def _has_noise(layer: BayesianLayer) -> bool:
    return isinstance(layer.posterior, MultiplicativeNoise)


@torch.no_grad()
def _last_layer(net: nn.Module, example: Tensor) -> str:
    """The name of the linear or convolution layer that a forward pass calls last."""
    called: list[str] = []
    kinds = tuple(BAYESIAN)
    hooks = [
        module.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, module in net.named_modules()
        if isinstance(module, kinds)
    ]
    training = net.training
    try:
        net.eval()(example)
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    if not called:
        raise ValueError(
            "tune_noise: the network calls no linear or convolution layer; name the layers to use with layers='…'"
        )
    return called[-1]


class _Outputs:
    """The network's outputs for all data as a function of the noise.

    Noise in one layer with known inputs gives an output variance proportional to :math:`\\alpha` if only linear
    operations follow; then two passes serve every value of the noise. Otherwise each value takes a pass.
    """

    def __init__(self, net: nn.Module, layers: list[BayesianLayer], inputs: list[Tensor]) -> None:
        self.net, self.layers, self.inputs = net, layers, inputs
        self._known: dict[float, Gaussian] = {}
        self._unit: Gaussian | None = None
        if len(layers) == 1:
            small, one = self._run(-5.0), self._run(0.0)
            ratio = _alpha(-5.0) / _alpha(0.0)
            error = (small.var - ratio * one.var).norm() / small.var.norm().clamp(min=1e-30)
            if float(error) < _LINEAR and torch.allclose(small.mean, one.mean, rtol=1e-4, atol=1e-5):
                self._unit = Gaussian.trusted(one.mean, one.var / _alpha(0.0))

    def __call__(self, rho: float) -> Gaussian:
        if self._unit is not None:
            return Gaussian.trusted(self._unit.mean, _alpha(rho) * self._unit.var)
        if rho not in self._known:
            self._known[rho] = self._run(rho)
        return self._known[rho]

    def set_noise(self, rho: float) -> None:
        with torch.no_grad():
            for layer in self.layers:
                layer.rho.fill_(rho)

    @torch.no_grad()
    def _run(self, rho: float) -> Gaussian:
        self.set_noise(rho)
        outs = [self.net(x) for x in self.inputs]
        for out in outs:
            if not isinstance(out, Gaussian):
                raise TypeError(
                    f"tune_noise: the network returns a {type(out).__name__}; wrap it so that it returns only the "
                    "logits"
                )
        return Gaussian.trusted(torch.cat([out.mean for out in outs]), torch.cat([out.var for out in outs]))


class _Search:
    """Minimises the negative log-likelihood over noise and temperature: a coarse grid, then golden sections."""

    def __init__(
        self, outputs: _Outputs, likelihood: Likelihood, y: Tensor, seed: int, temperatures: tuple[float, ...]
    ) -> None:
        self.outputs, self.likelihood, self.y, self.seed = outputs, likelihood, y, seed
        self.temperatures = temperatures

    def predictive(self, rho: float, temperature: float) -> Any:
        generator = getattr(self.likelihood, "generator", None)
        if generator is not None:
            generator.manual_seed(self.seed)  # the same samples for every candidate
        return self.likelihood.predictive(self.outputs(rho) / temperature)

    @torch.no_grad()
    def nll(self, rho: float, temperature: float) -> float:
        return -float(self.predictive(rho, temperature).log_prob(self.y).double().mean())

    def best_temperature(self, rho: float) -> tuple[float, float]:
        """The lowest NLL for this noise, and its temperature."""
        found = [(self.nll(rho, temperature), temperature) for temperature in self.temperatures]
        if len(found) == 1:
            return found[0]
        place = self.temperatures.index(min(found)[1])
        low = self.temperatures[max(place - 1, 0)]
        high = self.temperatures[min(place + 1, len(found) - 1)]
        refined = _lowest(lambda log: self.nll(rho, math.exp(log)), math.log(low), math.log(high))
        return min(min(found), (refined[0], math.exp(refined[1])))

    def best(self) -> tuple[float, float, float]:
        """NLL, rho and temperature."""
        coarse = {rho: min((self.nll(rho, t), t) for t in self.temperatures) for rho in _RHOS}
        place = min(range(len(_RHOS)), key=lambda i: coarse[_RHOS[i]])
        low, high = _RHOS[max(place - 1, 0)], _RHOS[min(place + 1, len(_RHOS) - 1)]
        _, rho = _lowest(lambda rho: self.best_temperature(rho)[0], low, high)
        found = []
        for candidate in (rho, _RHOS[place]):
            nll, temperature = self.best_temperature(candidate)
            found.append((nll, candidate, temperature))
        return min(found)


def _lowest(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Golden-section search: the lowest value found, and where."""
    inner = [high - _SHRINK * (high - low), low + _SHRINK * (high - low)]
    values = [function(inner[0]), function(inner[1])]
    found = list(zip(values, inner, strict=True))
    for _ in range(_REFINEMENTS):
        if values[0] < values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _SHRINK * (high - low)
            values[0] = function(inner[0])
            found.append((values[0], inner[0]))
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _SHRINK * (high - low)
            values[1] = function(inner[1])
            found.append((values[1], inner[1]))
    return min(found)


def _alpha(rho: float) -> float:
    return math.log1p(math.exp(rho))
