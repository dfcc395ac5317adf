"""The noise with the lowest negative log-likelihood: one number for all chosen layers, and a temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mnvi.layers.base import BayesianLayer
from mnvi.likelihoods import Likelihood
from mnvi.methods._line_search import best_temperature, lowest, tried
from mnvi.methods.last_layer import device_of
from mnvi.methods.montecarlo import seeded
from mnvi.values.gaussian import Gaussian

NO_NOISE = -20.0  # ρ; α = 2·10⁻⁹ changes nothing in float32
_RHOS = (-9.0, -7.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0)
_FURTHER_RHOS = (3.0, 5.0, 9.0)  # tried one after another while the best is the last
_LINEAR = 1e-3  # relative difference up to which an output's variance counts as proportional to the noise


class Outputs:
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

    def _run(self, rho: float) -> Gaussian:
        self.set_noise(rho)
        return self.as_it_is()

    @torch.no_grad()
    def as_it_is(self) -> Gaussian:
        """The outputs with the noise that the layers have."""
        place = device_of(self.net)
        outs = [self.net(x.to(place)) for x in self.inputs]
        for out in outs:
            if not isinstance(out, Gaussian):
                raise TypeError(
                    f"tune_noise: the network returns a {type(out).__name__}; wrap it so that it returns only the "
                    "logits"
                )
        return Gaussian.trusted(torch.cat([out.mean for out in outs]), torch.cat([out.var for out in outs]))


class Search:
    """Minimises the negative log-likelihood over noise and temperature: a coarse grid, then golden sections.

    With ``rhos`` these values of the noise are tried and no others.
    """

    def __init__(
        self,
        outputs: Callable[[float], Gaussian],
        likelihood: Likelihood,
        y: Tensor,
        seed: int,
        with_temperature: bool,
        rhos: Sequence[float] | None = None,
    ) -> None:
        self.outputs, self.likelihood, self.y, self.seed = outputs, likelihood, y, seed
        self.with_temperature, self.rhos = with_temperature, rhos

    def predictive(self, rho: float, temperature: float) -> Any:
        generator = getattr(self.likelihood, "generator", None)
        if generator is not None:
            generator.manual_seed(self.seed)  # the same samples for every candidate
        with seeded(self.seed, self.y.device):
            return self.likelihood.predictive(self.outputs(rho) / temperature)

    @torch.no_grad()
    def nll(self, rho: float, temperature: float) -> float:
        return -float(self.predictive(rho, temperature).log_prob(self.y).double().mean())

    def best_temperature(self, rho: float) -> tuple[float, float]:
        """The lowest NLL for this noise, and its temperature."""
        if not self.with_temperature:
            return self.nll(rho, 1.0), 1.0
        return best_temperature(lambda temperature: self.nll(rho, temperature))

    def best(self) -> tuple[float, float, float]:
        """NLL, rho and temperature."""
        if self.rhos is not None:
            chosen = [(*self.best_temperature(rho), rho) for rho in self.rhos]
            nll, temperature, rho = min(chosen)
            return nll, rho, temperature
        rhos = list(_RHOS)
        coarse = [self._coarse(rho) for rho in rhos]
        for rho in _FURTHER_RHOS:
            if min(coarse) < coarse[-1]:
                break
            rhos.append(rho)
            coarse.append(self._coarse(rho))
        place = coarse.index(min(coarse))
        low, high = rhos[max(place - 1, 0)], rhos[min(place + 1, len(rhos) - 1)]
        _, rho = lowest(lambda rho: self.best_temperature(rho)[0], low, high)
        found = []
        for candidate in (rho, rhos[place]):
            nll, temperature = self.best_temperature(candidate)
            found.append((nll, candidate, temperature))
        return min(found)

    def _coarse(self, rho: float) -> float:
        """The lowest NLL for this noise among a few temperatures."""
        if not self.with_temperature:
            return self.nll(rho, 1.0)
        return min(nll for _, nll in tried(lambda temperature: self.nll(rho, temperature)))


def _alpha(rho: float) -> float:
    return math.log1p(math.exp(rho))
