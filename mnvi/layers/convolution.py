"""Convolutions and transposed convolutions in one to three dimensions.

Zero padding is exact, and so is ``padding_mode="circular"`` for kernels no longer than the input. With ``"reflect"``
and ``"replicate"`` the copies of a random entry count as independent of it. Only border outputs are affected: for a
default 3×3 kernel their standard deviations are off by 8 % (root mean square) and 1 % too large on average. Kernels of
one sign are the worst case: for five ones, replicated, the variance of the first output is 5 instead of 11.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.layers.base import BayesianLayer
from mnvi.moments._torch import ConvNd, ConvTransposeNd
from mnvi.moments.affine import Affine
from mnvi.values.gaussian import Gaussian


def geometry(layer: nn.Module) -> Affine:
    """The linear operation of torch's linear and convolution layers, with and without posterior.

    Example:
        >>> import torch
        >>> geometry(torch.nn.Conv2d(4, 6, 3, groups=2)).groups
        2
    """
    if not isinstance(layer, ConvNd):
        return Affine()
    padding = (0,) * len(layer.kernel_size) if _pads_first(layer) else cast(tuple, layer.padding)
    return Affine(layer.stride, padding, layer.dilation, layer.transposed, layer.output_padding, layer.groups)


def _pads_first(layer: ConvNd) -> bool:
    """Whether to pad before the convolution, which itself pads only with zeros and equally on both sides."""
    return layer.padding_mode != "zeros" or isinstance(layer.padding, str)


class _Convolution(BayesianLayer, ConvNd):
    @property
    def geometry(self) -> Affine:
        return geometry(self)

    @property
    def in_units(self) -> int:
        return self.in_channels


class _ForwardConvolution(_Convolution):
    def prepared(self, x: Tensor | Gaussian) -> tuple[Affine, Tensor | Gaussian]:
        affine, x = super().prepared(x)
        if _pads_first(self) and any(self._reversed_padding_repeated_twice):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            x = F.pad(cast(Tensor, x), self._reversed_padding_repeated_twice, mode)
        return affine, x

    def unpadded(self, affine: Affine, x: Tensor | Gaussian, input: Any) -> tuple[Affine, Tensor | Gaussian]:
        if not isinstance(self.padding, str) or self.padding_mode != "zeros":
            return affine, x
        before = tuple(reversed(self._reversed_padding_repeated_twice[::2]))
        return replace(affine, padding=before), input


class _TransposedConvolution(_Convolution, ConvTransposeNd):
    @property
    def fan_in(self) -> int:
        """The average over outputs: a stride spreads the inputs over that many more outputs."""
        return max(1, self.weight[:, 0].numel() // (self.groups * math.prod(self.stride)))

    def prepared(self, x: Tensor | Gaussian, output_size: list[int] | None = None) -> tuple[Affine, Tensor | Gaussian]:
        affine, x = super().prepared(x)
        stride, padding = list(self.stride), list(cast(tuple, self.padding))
        kernel, dilation, dims = list(self.kernel_size), list(self.dilation), len(self.kernel_size)
        extra = self._output_padding(cast(Tensor, x), output_size, stride, padding, kernel, dims, dilation)
        return Affine(affine.stride, affine.padding, affine.dilation, True, tuple(extra), affine.groups), x

    def forward(self, input: Any, output_size: list[int] | None = None) -> Any:
        return super().forward(input, output_size)


class Conv1d(_ForwardConvolution, nn.Conv1d):
    """:class:`torch.nn.Conv1d` with a posterior over its weights.

    Reflected and replicated padding is approximate, see :mod:`mnvi.layers.convolution`.

    Args:
        args, kwargs: as in :class:`torch.nn.Conv1d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Conv1d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 8)).shape
        torch.Size([1, 2, 6])
    """


class Conv2d(_ForwardConvolution, nn.Conv2d):
    """:class:`torch.nn.Conv2d` with a posterior over its weights.

    Reflected and replicated padding is approximate, see :mod:`mnvi.layers.convolution`.

    Args:
        args, kwargs: as in :class:`torch.nn.Conv2d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Conv2d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 8, 8)).shape
        torch.Size([1, 2, 6, 6])
    """


class Conv3d(_ForwardConvolution, nn.Conv3d):
    """:class:`torch.nn.Conv3d` with a posterior over its weights.

    Reflected and replicated padding is approximate, see :mod:`mnvi.layers.convolution`.

    Args:
        args, kwargs: as in :class:`torch.nn.Conv3d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Conv3d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 4, 4, 4)).shape
        torch.Size([1, 2, 2, 2, 2])
    """


class ConvTranspose1d(_TransposedConvolution, nn.ConvTranspose1d):
    """:class:`torch.nn.ConvTranspose1d` with a posterior over its weights.

    Args:
        args, kwargs: as in :class:`torch.nn.ConvTranspose1d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.ConvTranspose1d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 8)).shape
        torch.Size([1, 2, 10])
    """


class ConvTranspose2d(_TransposedConvolution, nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d` with a posterior over its weights.

    Args:
        args, kwargs: as in :class:`torch.nn.ConvTranspose2d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.ConvTranspose2d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 8, 8)).shape
        torch.Size([1, 2, 10, 10])
    """


class ConvTranspose3d(_TransposedConvolution, nn.ConvTranspose3d):
    """:class:`torch.nn.ConvTranspose3d` with a posterior over its weights.

    Args:
        args, kwargs: as in :class:`torch.nn.ConvTranspose3d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: the posterior of the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.ConvTranspose3d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 4, 4, 4)).shape
        torch.Size([1, 2, 6, 6, 6])
    """
