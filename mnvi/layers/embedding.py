"""The embedding layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.layers.base import BayesianLayer
from mnvi.moments.affine import Affine
from mnvi.posteriors import delivered


class _Rows(Affine):
    """The layout of an embedding's weights, [num_embeddings, dim]: transposed, its rows are the input units."""

    def along_weight(self, units: Tensor, weight: Tensor) -> Tensor:
        return units[:, None] if self.transposed else units

    def along_outputs(self, units: Tensor, weight: Tensor) -> Tensor:
        return units if self.transposed else units[:, None]


class Embedding(BayesianLayer, nn.Embedding):
    r""":class:`torch.nn.Embedding` with a posterior over its vectors.

    .. math:: E[Z] = m_t, \qquad V[Z] = s_t \qquad \text{for token } t

    Posteriors with one value per input unit have one per token: the input is a one-hot vector. If a linear layer shares
    the weight, as output layers of language models do, both share the posterior of that layer, with one value per
    dimension of a vector. Two occurrences of a token count as independent draws. The vector at ``padding_idx`` is
    known, unless a linear layer shares it.

    Args:
        args, kwargs: as in :class:`torch.nn.Embedding`; ``max_norm`` is not supported.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Embedding(10, 4, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.tensor([[1, 2, 2]])).shape, layer.rho.shape
        (torch.Size([1, 3, 4]), torch.Size([10]))
    """

    bias = None  # posteriors ask for it
    tied_to_linear = False

    @property
    def geometry(self) -> Affine:
        return _Rows(transposed=not self.tied_to_linear)

    @property
    def in_units(self) -> int:
        return self.embedding_dim if self.tied_to_linear else self.num_embeddings

    @property
    def fan_in(self) -> int:
        return 1

    def forward(self, input: Any) -> Any:
        if not isinstance(input, Tensor):
            raise TypeError(f"Embedding: the input must be a tensor of indices, got {type(input).__name__}")
        if (drawn := self.posterior.drawn_weight()) is not None:
            return F.embedding(input, drawn)
        settings = {"scale_grad_by_freq": self.scale_grad_by_freq, "sparse": self.sparse}
        mean = F.embedding(input, self.weight, self.padding_idx, **settings)
        return delivered(self.posterior, mean, F.embedding(input, self.weight_variance()))

    def weight_variance(self) -> Tensor:
        var = super().weight_variance()
        if self.padding_idx is None or self.tied_to_linear:
            return var
        return var.index_fill(0, torch.tensor([self.padding_idx], device=var.device), 0.0)
