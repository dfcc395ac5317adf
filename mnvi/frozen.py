"""Posteriors for inference only: what does not depend on the input is computed once and kept in the layer's buffers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.gaussian import Gaussian
from mnvi.layers import BayesianLayer
from mnvi.moments.linear import Affine
from mnvi.posteriors import MeanField, MultiplicativeNoise, Posterior, Sampled, SharedMeanField
from mnvi.precision import full_precision, widened


class FrozenPosterior(Posterior):
    """What the posteriors for inference share: they propagate moments and know nothing of priors."""

    @abstractmethod
    def constants(self, layer: BayesianLayer, gain: Tensor) -> dict[str, Tensor | None]:
        """The tensors to keep.

        Args:
            layer: with its learnt posterior; its weight and bias are scaled already.
            gain: factor on the variances of weights and biases that comes from that scaling, one per output unit.
        """

    @abstractmethod
    def variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None) -> Tensor:
        """Variance of the layer's output, from the constants that are now buffers of ``layer``."""

    def forward(self, layer: BayesianLayer, x: Tensor | Gaussian, **geometry: Any) -> Gaussian:
        affine, mean, var = layer.prepared(x, **geometry)
        expectation = affine(mean, layer.weight, layer.bias)
        with full_precision(mean):
            return Gaussian.trusted(
                expectation, self.variance(layer, affine, widened(mean), None if var is None else widened(var))
            )

    def add_parameters(self, layer: BayesianLayer) -> None:
        """There are none: nothing is learnt any more."""

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        raise TypeError(
            "kl_divergence: a model optimised for inference no longer knows its priors; ask the model it was made from"
        )


@dataclass(frozen=True)
class FrozenMultiplicativeNoise(FrozenPosterior):
    r""":class:`mnvi.MultiplicativeNoise` for inference; one product and one sum are left before the convolution.

    .. math:: V = A\,(v + (r\circ x)^2), \qquad A = M\circ M\circ(1+\alpha), \quad r = \sqrt{\alpha/(1+\alpha)}
    """

    def constants(self, layer: BayesianLayer, gain: Tensor) -> dict[str, Tensor | None]:
        alpha = F.softplus(widened(layer.rho))
        return {
            "noise": layer.along_input((alpha / (1 + alpha)).sqrt()),
            "second_moment": widened(layer.weight).square() * layer.along_weight(1 + alpha),
        }

    def variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None) -> Tensor:
        noise = mean * widened(layer.noise)
        noisy = noise.square() if var is None else torch.addcmul(var, noise, noise)
        return affine(noisy, widened(layer.second_moment))

    def weight_variance(self, layer: Any) -> Tensor:
        variance: Tensor = layer.second_moment * layer.along_weight(layer.noise.flatten().square())
        return variance


@dataclass(frozen=True)
class FrozenMeanField(FrozenPosterior):
    r""":class:`mnvi.MeanField` for inference: :math:`V = S(x\circ x) + A\,v + s_b` with :math:`A = S + M\circ M`."""

    def constants(self, layer: BayesianLayer, gain: Tensor) -> dict[str, Tensor | None]:
        spread = widened(layer.weight_variance()) * along_outputs(layer, gain)
        bias_spread = layer.bias_variance()
        return {
            "spread": spread,
            "second_moment": spread + widened(layer.weight).square(),
            "bias_spread": None if bias_spread is None else widened(bias_spread) * gain,
        }

    def variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None) -> Tensor:
        bias_spread = None if layer.bias_spread is None else widened(layer.bias_spread)
        variance = affine(mean.square(), widened(layer.spread), bias_spread)
        return variance if var is None else variance.add_(affine(var, widened(layer.second_moment)))

    def weight_variance(self, layer: Any) -> Tensor:
        variance: Tensor = layer.spread
        return variance

    def bias_variance(self, layer: Any) -> Tensor | None:
        variance: Tensor | None = layer.bias_spread
        return variance


@dataclass(frozen=True)
class FrozenSharedMeanField(FrozenPosterior):
    r""":class:`mnvi.SharedMeanField` for inference; the sum that all outputs of a group share is still taken once.

    .. math:: V_i = g_i \sum_j s_j (v_j + x_j^2) + \sum_j m_{ij}^2 v_j
    """

    def constants(self, layer: BayesianLayer, gain: Tensor) -> dict[str, Tensor | None]:
        spread = widened(layer.weight_variance())
        transposed, groups = getattr(layer, "transposed", False), getattr(layer, "groups", 1)
        return {
            "spread": spread[:, :1] if transposed else spread[:: len(spread) // groups],  # of one output per group
            "second_moment": widened(layer.weight).square(),
            "gain": gain.to(spread.dtype).view(-1, *(1 for _ in getattr(layer, "kernel_size", ()))),
        }

    def variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None) -> Tensor:
        square = mean.square()
        shared = affine(square if var is None else square.add_(var), widened(layer.spread))
        gain = widened(layer.gain)
        if affine.groups > 1:
            shared = shared.repeat_interleave(len(gain) // affine.groups, -gain.dim())
        if var is None:
            return shared * gain
        return torch.addcmul(affine(var, widened(layer.second_moment)), shared, gain)

    def weight_variance(self, layer: Any) -> Tensor:
        spread = layer.spread
        if not getattr(layer, "transposed", False):
            spread = spread.repeat_interleave(len(layer.weight) // len(spread), 0)
        variance: Tensor = spread * along_outputs(layer, layer.gain.flatten())
        return variance


_FROZEN: dict[type[Posterior], type[FrozenPosterior]] = {
    MultiplicativeNoise: FrozenMultiplicativeNoise,
    MeanField: FrozenMeanField,
    SharedMeanField: FrozenSharedMeanField,
}


def can_be_frozen(layer: BayesianLayer) -> bool:
    """Whether the layer's posterior is one of the library's own."""
    return type(_learnt(layer)) in _FROZEN


def _learnt(layer: BayesianLayer) -> Posterior:
    return layer.posterior.posterior if isinstance(layer.posterior, Sampled) else layer.posterior


def freeze(layer: BayesianLayer, gain: Tensor | None = None) -> None:
    """Replace, in place, a layer's posterior by its counterpart for inference.

    Args:
        layer: its posterior's parameters are removed; ``weight`` and ``bias`` stay.
        gain: factor on the variances of weights and biases, one per output unit; None for 1.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> freeze(layer)
        >>> list(layer.state_dict())
        ['weight', 'bias', 'noise', 'second_moment']
    """
    frozen = _FROZEN[type(_learnt(layer))]()
    with torch.no_grad():
        if gain is None:
            gain = widened(layer.weight).new_ones(output_units(layer))
        constants = frozen.constants(layer, gain)  # of the learnt posterior, which is still in place
    for name in [name for name in layer._parameters if name not in ("weight", "bias")]:
        delattr(layer, name)
    for name, constant in constants.items():
        layer.register_buffer(name, None if constant is None else constant.to(widened(layer.weight).dtype).clone())
    layer.posterior = Sampled(frozen) if isinstance(layer.posterior, Sampled) else frozen


def output_units(layer: nn.Module) -> int:
    """Number of a linear or convolution layer's output units or channels."""
    units: Any = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return int(units)


def along_outputs(layer: Any, units: Tensor) -> Tensor:
    """One value per output unit, laid out to broadcast against the layer's weight."""
    if isinstance(layer, nn.Linear):
        return units[:, None]
    if not layer.transposed:
        return units.view(-1, 1, *(1 for _ in layer.kernel_size))
    # weight [in, out / groups, kernel...]: the inputs of a group meet the outputs of that group
    per_group = units.view(layer.groups, 1, -1).expand(-1, layer.in_channels // layer.groups, -1)
    return per_group.flatten(0, 1)[(...,) + (None,) * len(layer.kernel_size)]
