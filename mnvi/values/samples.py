"""Samples of a random tensor, which a network can return instead of a tensor or a :class:`mnvi.Gaussian`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import pytree


@dataclass(frozen=True)
class Samples:
    """Equally likely outputs of a network with sampled weights, dropout masks, or several members.

    Args:
        values: [num_samples, batch, ...].

    Example:
        >>> import torch, mnvi
        >>> mnvi.Samples(torch.zeros(8, 5, 2)).mean.shape
        torch.Size([5, 2])
    """

    values: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.values, Tensor):
            raise TypeError(
                f"Samples: values must be a torch.Tensor, got {type(self.values).__name__}; use torch.stack"
            )
        if self.values.dim() < 2 or len(self.values) == 0:
            raise ValueError(
                f"Samples: values must be [num_samples >= 1, batch, ...], got shape {tuple(self.values.shape)}"
            )

    @property
    def mean(self) -> Tensor:
        return self.values.mean(0)

    @property
    def var(self) -> Tensor:
        return self.values.var(0, correction=0)

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample."""
        return self.values.shape[1:]


def _unflatten(leaves: Any, context: None) -> Samples:
    out = object.__new__(Samples)
    object.__setattr__(out, "values", next(iter(leaves)))
    return out


pytree.register_pytree_node(
    Samples, lambda samples: ([samples.values], None), _unflatten, serialized_type_name="mnvi.Samples"
)
