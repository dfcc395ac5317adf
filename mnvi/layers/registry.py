"""Registry of layer classes and their counterparts with a posterior."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from mnvi.layers import convolution
from mnvi.layers.attention import BayesianProjection, Projection
from mnvi.layers.base import BayesianLayer
from mnvi.layers.bilinear import Bilinear
from mnvi.layers.embedding import Embedding
from mnvi.layers.linear import Linear
from mnvi.layers.recurrent import BayesianGates, Gates

LayerT = TypeVar("LayerT", bound=type[BayesianLayer])

BAYESIAN: dict[type[nn.Module], type[BayesianLayer]] = {
    nn.Linear: Linear,
    nn.Conv1d: convolution.Conv1d,
    nn.Conv2d: convolution.Conv2d,
    nn.Conv3d: convolution.Conv3d,
    nn.ConvTranspose1d: convolution.ConvTranspose1d,
    nn.ConvTranspose2d: convolution.ConvTranspose2d,
    nn.ConvTranspose3d: convolution.ConvTranspose3d,
    nn.Bilinear: Bilinear,
    nn.Embedding: Embedding,
    Projection: BayesianProjection,
    Gates: BayesianGates,
}


def register_layer(original: type[nn.Module]) -> Callable[[LayerT], LayerT]:
    """Class decorator: :func:`mnvi.convert` turns layers of a class into the decorated class.

    A subclass of torch's layers that calls ``super().forward`` needs no registration. One that computes with its weight
    itself does.

    Args:
        original: the class of deterministic layers; a subclass with a ``forward`` of its own needs its own
            registration, unless it calls ``super().forward``.

    Example:
        >>> import torch, mnvi
        >>> class Doubled(torch.nn.Linear):
        ...     def forward(self, input):
        ...         return torch.nn.functional.linear(2 * input, self.weight, self.bias)
        >>> @mnvi.register_layer(Doubled)
        ... class BayesianDoubled(mnvi.layers.Linear):
        ...     def prepared(self, x):
        ...         return super().prepared(2 * x)
        >>> layer = mnvi.convert(Doubled(3, 2), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> type(layer).__name__, layer(torch.ones(1, 3)).shape
        ('BayesianDoubled', torch.Size([1, 2]))
    """
    if not (isinstance(original, type) and issubclass(original, nn.Module)) or issubclass(original, BayesianLayer):
        raise TypeError(f"register_layer: expected a class of deterministic layers such as nn.Linear, got {original!r}")

    def register(bayesian: LayerT) -> LayerT:
        if not (isinstance(bayesian, type) and issubclass(bayesian, BayesianLayer)):
            raise TypeError(f"register_layer: {bayesian!r} must be a subclass of mnvi.layers.BayesianLayer")
        BAYESIAN[original] = bayesian
        return bayesian

    return register
