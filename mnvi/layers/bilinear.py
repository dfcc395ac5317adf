"""The bilinear layer."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.layers.base import BayesianLayer
from mnvi.moments.affine import Affine
from mnvi.moments.bilinear import bilinear
from mnvi.posteriors import delivered
from mnvi.values.gaussian import Gaussian


class _Pairs(Affine):
    """The layout of a bilinear form's weights, [out, in1, in2]; units are those of the second input."""

    def along_outputs(self, units: Tensor, weight: Tensor) -> Tensor:
        return units[:, None, None]


class Bilinear(BayesianLayer, nn.Bilinear):
    """:class:`torch.nn.Bilinear` with a posterior over its weights; its moments are exact for independent inputs.

    Posteriors with one value per input unit have one per unit of the second input.

    Args:
        args, kwargs: as in :class:`torch.nn.Bilinear`; the inputs may be tensors or :class:`mnvi.Gaussian`.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Bilinear(3, 4, 2, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(5, 3), torch.ones(5, 4)).shape, layer.rho.shape
        (torch.Size([5, 2]), torch.Size([4]))
    """

    @property
    def geometry(self) -> Affine:
        return _Pairs()

    @property
    def in_units(self) -> int:
        return self.in2_features

    def forward(self, input1: Any, input2: Any) -> Any:
        if input1 is input2 and isinstance(input1, Gaussian):
            raise ValueError(
                "Bilinear: both inputs are the same random value, and its moments with itself are unknown; pass a "
                "tensor for one of them, e.g. x.mean"
            )
        if (drawn := self.posterior.drawn_weight()) is not None:
            return F.bilinear(input1, input2, drawn, self.posterior.bias)  # type: ignore[attr-defined]
        left, right = ((x.mean, x.var) if isinstance(x, Gaussian) else (x, None) for x in (input1, input2))
        spread, bias_spread = self.weight_variance(), self.bias_variance()
        return delivered(self.posterior, *bilinear(left, right, self.weight, self.bias, spread, bias_spread))
