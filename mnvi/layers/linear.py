"""The fully connected layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from mnvi.layers.base import BayesianLayer
from mnvi.moments import joint
from mnvi.moments.affine import Affine
from mnvi.values.joint import JointGaussian


class Linear(BayesianLayer, nn.Linear):
    """:class:`torch.nn.Linear` with a posterior over its weights.

    Args:
        args, kwargs: as in :class:`torch.nn.Linear`; the input may be a tensor, a :class:`mnvi.Gaussian` or
            a :class:`mnvi.JointGaussian`.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Linear(3, 2, posterior=mnvi.MeanField(prior_variance=1.0))
        >>> layer(mnvi.Gaussian(torch.zeros(5, 3), torch.ones(5, 3))).shape
        torch.Size([5, 2])
    """

    @property
    def geometry(self) -> Affine:
        return Affine()

    @property
    def in_units(self) -> int:
        return self.in_features

    def forward(self, input: Any) -> Any:
        if not isinstance(input, JointGaussian):
            return super().forward(input)
        self._check(input, -1)
        weights = self.weight, self.bias, self.weight_variance(), self.bias_variance()
        return JointGaussian.trusted(*joint.linear(input.mean, input.spread, *weights))
