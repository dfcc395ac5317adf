"""A network with one draw of all its weights, which runs on plain tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mnvi.layers.base import BayesianLayer, bayesian_layers
from mnvi.moments.affine import Affine
from mnvi.moments.precision import widened
from mnvi.posteriors import Posterior


@dataclass(frozen=True, eq=False)
class Drawn(Posterior):
    """One draw of a layer's weights, in place of their posterior; the layer's output is a tensor."""

    weight: Tensor
    bias: Tensor | None

    def output(self, layer: BayesianLayer, affine: Affine, mean: Tensor, var: Tensor | None) -> Tensor:
        if var is not None:
            raise TypeError(
                f"drawn_weights: {type(layer).__name__} got a Gaussian; with drawn weights every value must be a "
                "tensor, so draw the network's inputs too"
            )
        return affine(mean, self.weight, self.bias)

    def add_parameters(self, layer: BayesianLayer) -> None:
        """Adds none: these weights stand in for a posterior during some passes only."""

    def drawn_weight(self) -> Tensor:
        return self.weight

    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        return torch.zeros_like(self.weight)

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        raise TypeError("kl_divergence: these weights are drawn; take the KL outside of drawn_weights")


@contextmanager
def drawn_weights(model: nn.Module, generator: torch.Generator | None = None) -> Iterator[None]:
    r"""Inside, a converted model has one draw of all its weights, and returns tensors.

    .. math:: w = m + \sqrt{V[w]}\,\varepsilon, \qquad \varepsilon \sim \mathcal N(0, 1)

    Each weight is drawn once, however many examples, positions and calls use it: this is the network whose outputs
    :func:`mnvi.convert` predicts. :class:`mnvi.Sampled` in contrast draws the outputs of each layer anew for every
    example and position. Layers with tied weights share the draw.

    Args:
        model: from :func:`mnvi.convert`; its posteriors are back afterwards.
        generator: makes the draw reproducible.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(torch.nn.Linear(3, 2), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> with mnvi.comparison.drawn_weights(net):
        ...     out = net(torch.ones(2, 3))
        >>> bool((out[0] == out[1]).all()), type(net(torch.ones(2, 3))).__name__
        (True, 'Gaussian')
    """
    layers = bayesian_layers(model)
    posteriors = [layer.posterior for layer in layers]
    noise: dict[int, tuple[Tensor, Tensor]] = {}
    try:
        with torch.no_grad():
            for layer in layers:
                weight, bias = layer.weight, layer.bias
                weight = _drawn(weight, layer.weight_variance(), layer.stored_weight, noise, generator)
                if bias is not None:
                    bias = _drawn(bias, layer.bias_variance(), bias, noise, generator)
                layer.posterior = Drawn(weight, bias)
        yield
    finally:
        for layer, posterior in zip(layers, posteriors, strict=True):
            layer.posterior = posterior


def _drawn(
    mean: Tensor,
    var: Tensor | None,
    stored: Tensor,
    noise: dict[int, tuple[Tensor, Tensor]],
    generator: torch.Generator | None,
) -> Tensor:
    if var is None:
        return mean
    if id(stored) not in noise:  # a tied weight has the noise of its twin
        device = mean.device if generator is None else generator.device
        drawn = torch.randn(mean.shape, generator=generator, device=device, dtype=widened(mean).dtype)
        noise[id(stored)] = stored, drawn.to(mean.device)  # holding the tensor keeps its id from being used again
    return torch.addcmul(widened(mean), widened(var).sqrt(), noise[id(stored)][1]).to(mean.dtype)
