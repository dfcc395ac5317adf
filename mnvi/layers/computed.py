"""Layers whose weight is computed from other tensors: standardised, transposed, or parametrised by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from mnvi.layers.base import BayesianLayer


class ComputedWeight(BayesianLayer):
    """Base of layers whose ``weight`` is computed; the posterior is one over the computed weight.

    A subclass defines :meth:`computed_weight`. A forward pass computes it once.

    Attributes:
        stored_as: the class of a layer that stores this weight; :func:`store_weight` makes the layer one of it.
    """

    stored_as: ClassVar[type[BayesianLayer]]
    _held: Tensor | None = None

    def computed_weight(self) -> Tensor:
        """The weight, from the layer's parameters."""
        raise NotImplementedError(f"{type(self).__name__} must define computed_weight(), which returns its weight")

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.computed_weight() if self._held is None else self._held

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _holding_weight(self, super().forward, *args, **kwargs)


def _holding_weight(layer: Any, forward: Callable, *args: Any, **kwargs: Any) -> Any:
    layer._held = layer.computed_weight()
    try:
        return forward(*args, **kwargs)
    finally:
        layer._held = None


def parametrized(bayesian: type[BayesianLayer]) -> type[BayesianLayer]:
    """A class for a layer whose ``weight`` is parametrised, as by ``torch.nn.utils.parametrizations.weight_norm``.

    Each layer gets a class of its own, as in torch, and :func:`torch.nn.utils.parametrize.remove_parametrizations`
    gives the layer the class that this one derives from.

    Args:
        bayesian: the class of the layer with a posterior, without the parametrisation.

    Example:
        >>> import torch, mnvi
        >>> plain = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
        >>> layer = mnvi.convert(plain, mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> [name for name, _ in layer.named_parameters()]
        ['bias', 'rho', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
        >>> layer(torch.ones(1, 3)).shape
        torch.Size([1, 2])
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _holding_weight(self, super(made, self).forward, *args, **kwargs)

    namespace = {
        "weight": vars(ComputedWeight)["weight"],  # in this class, where torch looks for it to remove it
        "_held": None,
        "stored_as": bayesian,
        "computed_weight": lambda self: self.parametrizations["weight"](),
        "forward": forward,
        "__reduce_ex__": lambda self, protocol: (_blank, (bayesian,), self.__getstate__()),
    }
    made: type[BayesianLayer] = type(f"Parametrized{bayesian.__name__}", (bayesian,), namespace)
    return made


def _blank(bayesian: type[BayesianLayer]) -> BayesianLayer:
    """A layer without content, in a class of its own, for pickles and copies."""
    made = parametrized(bayesian)
    return made.__new__(made)


def store_weight(layer: Any) -> None:
    """Make, in place, a layer with a computed weight one that stores its weight; its posterior stays.

    Args:
        layer: a :class:`ComputedWeight`, or of a class made by :func:`parametrized`.
    """
    weight = layer.weight
    for name in layer.own_names:
        if name != "bias":
            layer._parameters.pop(name, None)
    layer._modules.pop("parametrizations", None)
    layer.__class__ = layer.stored_as
    layer.register_parameter("weight", nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad))
