"""Linear and convolution layers that own a posterior; subclasses of torch's with the same ``weight`` and ``bias``.

>>> import mnvi
>>> mnvi.layers.Linear(3, 2, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0)).weight.shape
torch.Size([2, 3])
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.covariance import JointGaussian
from mnvi.gaussian import Gaussian
from mnvi.moments import covariance
from mnvi.moments.linear import Affine
from mnvi.posteriors import Posterior
from mnvi.precision import autocasts


class BayesianLayer(nn.Module):
    """What all layers with a posterior share. ``Bayesian(layer)`` means: its output is a :class:`mnvi.Gaussian`.

    Layers are made by :func:`mnvi.convert`, or directly with torch's arguments and ``posterior=``.

    Args:
        args, kwargs: those of torch's layer of the same name.
        posterior: what is learnt about the weights, e.g. ``mnvi.MultiplicativeNoise(prior_variance=1.0)``.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Linear(3, 2, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> isinstance(layer, torch.nn.Linear), type(layer(torch.ones(1, 3))).__name__
        (True, 'Gaussian')
    """

    posterior: Posterior
    weight: Tensor
    bias: Any  # a tensor or None
    rho: Tensor  # with MultiplicativeNoise
    log_var: Tensor  # with MeanField and SharedMeanField
    bias_log_var: Tensor | None  # with MeanField

    def __init__(self, *args: Any, posterior: Posterior, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adopt(posterior)

    def adopt(self, posterior: Posterior) -> None:
        """Take on a posterior: add its parameters to the layer's own.

        Args:
            posterior: what is learnt about the weights.
        """
        if not isinstance(posterior, Posterior):
            raise TypeError(
                f"{type(self).__name__}: posterior must be e.g. mnvi.MultiplicativeNoise(prior_variance=1.0), got "
                f"{posterior!r}"
            )
        self.posterior = posterior
        posterior.add_parameters(self)

    def prepared(self, x: Tensor | Gaussian, **geometry: Any) -> tuple[Affine, Tensor, Tensor | None]:
        """The linear operation for this input, and the input's mean and variance (None: the input is known).

        Args:
            x: the input.
            geometry: ``output_size`` of a transposed convolution.
        """
        affine, x = self._affine(x, **geometry)
        return (affine, x.mean, x.var) if isinstance(x, Gaussian) else (affine, x, None)

    def weight_variance(self) -> Tensor:
        """Posterior variance of every weight, in the shape of ``weight``."""
        return self.posterior.weight_variance(self)

    def bias_variance(self) -> Tensor | None:
        """Posterior variance of every bias, or None where biases are known."""
        return self.posterior.bias_variance(self)

    def kl_divergence(self) -> Tensor:
        """KL from this layer's posterior to its prior, summed over its weights."""
        return self.posterior.kl_divergence(self)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, posterior={self.posterior}"

    @property
    def in_units(self) -> int:
        """Number of input units or channels."""
        raise NotImplementedError

    @property
    def fan_in(self) -> int:
        """Number of inputs that meet in one output."""
        return self.weight[0].numel()

    def along_input(self, units: Tensor) -> Tensor:
        """One value per input unit, laid out to broadcast against the input.

        Args:
            units: [in_units].
        """
        raise NotImplementedError

    def along_weight(self, units: Tensor) -> Tensor:
        """One value per input unit, laid out in the shape of ``weight`` or to broadcast against it.

        Args:
            units: [in_units].
        """
        raise NotImplementedError

    def grouped_weight(self) -> Tensor:
        """``weight`` in a shape against which :meth:`grouped_units` broadcasts without repeating a value."""
        return self.weight

    def grouped_units(self, units: Tensor) -> Tensor:
        """One value per input unit, laid out to broadcast against :meth:`grouped_weight`.

        Args:
            units: [in_units].
        """
        return self.along_weight(units)

    def _affine(self, x: Tensor | Gaussian, **geometry: Any) -> tuple[Affine, Tensor | Gaussian]:
        raise NotImplementedError

    def _checked(self, x: Tensor | Gaussian | JointGaussian, channel_dim: int) -> None:
        if not isinstance(x, Tensor | Gaussian | JointGaussian):
            raise TypeError(
                f"{type(self).__name__}: the input must be a tensor or mnvi.Gaussian, got {type(x).__name__}"
            )
        if channel_dim < -1 and x.dim() > 1 - channel_dim:
            raise ValueError(
                f"{type(self).__name__}: expected an input of {-channel_dim} or {1 - channel_dim} dimensions, got "
                f"shape {tuple(x.shape)}"
            )
        if x.dim() < -channel_dim or x.shape[channel_dim] != self.in_units:
            raise ValueError(
                f"{type(self).__name__}: expected {self.in_units} input units in dimension {channel_dim}, "
                f"got an input of shape {tuple(x.shape)}"
            )
        if x.device != self.weight.device:
            raise ValueError(
                f"{type(self).__name__}: the input is on {x.device}, the weight on {self.weight.device}; move one with "
                ".to(device)"
            )
        if x.dtype != self.weight.dtype and not autocasts(self.weight):
            raise TypeError(
                f"{type(self).__name__}: the input is {x.dtype}, the weight {self.weight.dtype}; convert one with "
                ".to(dtype)"
            )


class Linear(BayesianLayer, nn.Linear):
    """:class:`torch.nn.Linear` with a posterior over its weights.

    Args:
        args, kwargs: as in :class:`torch.nn.Linear`; the input may be a tensor, a :class:`mnvi.Gaussian` or
            a :class:`mnvi.JointGaussian`.
        posterior: what is learnt about the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Linear(3, 2, posterior=mnvi.MeanField(prior_variance=1.0))
        >>> layer(mnvi.Gaussian(torch.zeros(5, 3), torch.ones(5, 3))).shape
        torch.Size([5, 2])
    """

    def forward(self, input: Any) -> Any:
        if isinstance(input, JointGaussian):
            self._checked(input, -1)
            weights = self.weight, self.bias, self.weight_variance(), self.bias_variance()
            return JointGaussian.trusted(*covariance.linear(input.mean, input.spread, *weights))
        return self.posterior.forward(self, input)

    @property
    def in_units(self) -> int:
        return self.in_features

    def along_input(self, units: Tensor) -> Tensor:
        return units

    def along_weight(self, units: Tensor) -> Tensor:
        return units

    def _affine(self, x: Tensor | Gaussian, **geometry: Any) -> tuple[Affine, Tensor | Gaussian]:
        self._checked(x, -1)
        return Affine(), x


class _Convolution(BayesianLayer, nn.modules.conv._ConvNd):
    @property
    def in_units(self) -> int:
        return self.in_channels

    def along_input(self, units: Tensor) -> Tensor:
        return units.view(-1, *(1 for _ in self.kernel_size))

    def along_weight(self, units: Tensor) -> Tensor:  # weight [out, in / groups, kernel...]
        per_group = self.grouped_units(units)
        shape = (self.groups, self.out_channels // self.groups, *per_group.shape[2:])
        return per_group.expand(shape).flatten(0, 1)

    def grouped_weight(self) -> Tensor:
        return self.weight.view(self.groups, self.out_channels // self.groups, *self.weight.shape[1:])

    def grouped_units(self, units: Tensor) -> Tensor:
        return units.view(self.groups, 1, -1, *(1 for _ in self.kernel_size))


class _ForwardConvolution(_Convolution):
    def forward(self, input: Any) -> Any:
        return self.posterior.forward(self, input)

    def _affine(self, x: Tensor | Gaussian, **geometry: Any) -> tuple[Affine, Tensor | Gaussian]:
        self._checked(x, -1 - len(self.kernel_size))
        padding = self.padding
        if self.padding_mode != "zeros" or isinstance(padding, str):
            if any(self._reversed_padding_repeated_twice):
                mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
                x = F.pad(cast(Tensor, x), self._reversed_padding_repeated_twice, mode)
            padding = (0,) * len(self.kernel_size)
        none = (0,) * len(self.kernel_size)
        return Affine(self.stride, cast(tuple, padding), self.dilation, False, none, self.groups), x


class _TransposedConvolution(_Convolution, nn.modules.conv._ConvTransposeNd):
    def forward(self, input: Any, output_size: list[int] | None = None) -> Any:
        return self.posterior.forward(self, input, output_size=output_size)

    def along_weight(self, units: Tensor) -> Tensor:  # weight [in, out / groups, kernel...]
        return units.view(-1, 1, *(1 for _ in self.kernel_size))

    def grouped_weight(self) -> Tensor:
        return self.weight

    def grouped_units(self, units: Tensor) -> Tensor:
        return self.along_weight(units)

    @property
    def fan_in(self) -> int:
        """On average over the outputs: a stride spreads the inputs over so many more of them."""
        return max(1, self.weight[:, 0].numel() // (self.groups * math.prod(self.stride)))

    def _affine(  # type: ignore[override]
        self, x: Tensor | Gaussian, output_size: list[int] | None = None
    ) -> tuple[Affine, Tensor | Gaussian]:
        dims = len(self.kernel_size)
        self._checked(x, -1 - dims)
        padding = cast(tuple, self.padding)
        stride, kernel, dilation = list(self.stride), list(self.kernel_size), list(self.dilation)
        extra = self._output_padding(cast(Tensor, x), output_size, stride, list(padding), kernel, dims, dilation)
        return Affine(self.stride, padding, self.dilation, True, tuple(extra), self.groups), x


class Conv1d(_ForwardConvolution, nn.Conv1d):
    """:class:`torch.nn.Conv1d` with a posterior over its weights.

    With ``padding_mode="reflect"`` or ``"replicate"`` the copies of an entry of a random input count as independent of
    it. This is felt at the border alone: of a 3×3 kernel as torch initialises it the standard deviations there are off
    by 8 % (root mean square), 1 % too large on average. Kernels of one sign are the worst case: of five ones,
    replicated, the variance of the first output is 5 instead of 11. Zeros are exact, and so is ``"circular"`` for
    kernels no longer than the input.

    Args:
        args, kwargs: as in :class:`torch.nn.Conv1d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: what is learnt about the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Conv1d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 8)).shape
        torch.Size([1, 2, 6])
    """


class Conv2d(_ForwardConvolution, nn.Conv2d):
    """:class:`torch.nn.Conv2d` with a posterior over its weights.

    With ``padding_mode="reflect"`` or ``"replicate"`` the copies of an entry of a random input count as independent of
    it. This is felt at the border alone: of a 3×3 kernel as torch initialises it the standard deviations there are off
    by 8 % (root mean square), 1 % too large on average. Kernels of one sign are the worst case: of five ones,
    replicated, the variance of the first output is 5 instead of 11. Zeros are exact, and so is ``"circular"`` for
    kernels no longer than the input.

    Args:
        args, kwargs: as in :class:`torch.nn.Conv2d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: what is learnt about the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Conv2d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 8, 8)).shape
        torch.Size([1, 2, 6, 6])
    """


class Conv3d(_ForwardConvolution, nn.Conv3d):
    """:class:`torch.nn.Conv3d` with a posterior over its weights.

    With ``padding_mode="reflect"`` or ``"replicate"`` the copies of an entry of a random input count as independent of
    it. This is felt at the border alone: of a 3×3 kernel as torch initialises it the standard deviations there are off
    by 8 % (root mean square), 1 % too large on average. Kernels of one sign are the worst case: of five ones,
    replicated, the variance of the first output is 5 instead of 11. Zeros are exact, and so is ``"circular"`` for
    kernels no longer than the input.

    Args:
        args, kwargs: as in :class:`torch.nn.Conv3d`; the input may be a tensor or a :class:`mnvi.Gaussian`.
        posterior: what is learnt about the weights, see :class:`mnvi.Posterior`.

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
        posterior: what is learnt about the weights, see :class:`mnvi.Posterior`.

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
        posterior: what is learnt about the weights, see :class:`mnvi.Posterior`.

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
        posterior: what is learnt about the weights, see :class:`mnvi.Posterior`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.ConvTranspose3d(3, 2, 3, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer(torch.ones(1, 3, 4, 4, 4)).shape
        torch.Size([1, 2, 6, 6, 6])
    """
