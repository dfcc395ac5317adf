r"""Discrete Fourier transforms of real Gaussians: linear, so real and imaginary part are exact, each by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_POWERS = {"backward": 0, "ortho": 1, "forward": 2}  # of 1/N that a forward transform puts into a variance


def parts(
    mean: Tensor, var: Tensor, sizes: Sequence[int], dims: Sequence[int], norm: str = "backward", inverse: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Mean and variance of the real part, then of the imaginary part, over the full spectrum; exact.

    With P the transform of the variances and c the factor of the norm,

    .. math:: V[\operatorname{Re} F_k] = \tfrac12 c^2\bigl(P_0 + \operatorname{Re} P_{2k}\bigr), \qquad
              V[\operatorname{Im} F_k] = \tfrac12 c^2\bigl(P_0 - \operatorname{Re} P_{2k}\bigr),

    because :math:`\cos^2\theta = \tfrac12(1 + \cos 2\theta)`.

    Args:
        mean, var: the input's moments.
        sizes: how long the transform is along each of ``dims``; shorter inputs are filled up with zeros.
        dims: the dimensions to transform.
        norm: as in ``torch.fft.fftn``.
        inverse: the inverse transform, which has the other sign and norm.

    Example:
        >>> import torch
        >>> _, real, _, imaginary = parts(torch.zeros(4), torch.ones(4), [4], [0])
        >>> real, imaginary
        (tensor([4., 2., 4., 2.]), tensor([0., 2., 0., 2.]))
    """
    transform = torch.fft.ifftn if inverse else torch.fft.fftn
    spectrum = transform(mean, list(sizes), list(dims), norm)
    power = torch.fft.fftn(var, list(sizes), list(dims)).real
    total, doubled = power, power
    for size, dim in zip(sizes, dims, strict=True):
        total = total.narrow(dim, 0, 1)
        doubled = doubled.index_select(dim, 2 * torch.arange(size, device=var.device) % size)
    exponent = 2 - _POWERS[norm] if inverse else _POWERS[norm]
    half = 0.5 / math.prod(sizes) ** exponent
    real, imaginary = (half * (total + doubled)).clamp(min=0), (half * (total - doubled)).clamp(min=0)
    return spectrum.real, real, spectrum.imag, imaginary


def filtered(
    mean: Tensor, var: Tensor, weight: Tensor, sizes: Sequence[int], dims: Sequence[int]
) -> tuple[Tensor, Tensor]:
    r"""Moments of ``irfftn(rfftn(x) * weight)``, a circular convolution with a known kernel w; exact.

    .. math:: E = w * \mu, \qquad V = (w \circ w) * v, \qquad w = \mathrm{irfftn}(\mathrm{weight})

    Args:
        mean, var: the input's moments.
        weight: the filter, with the size of the half spectrum along ``dims``; other dimensions broadcast.
        sizes: how long the transforms are along each of ``dims``.
        dims: the dimensions to transform, counted from the end.

    Example:
        >>> import torch
        >>> shift = torch.exp(-2j * torch.pi * torch.arange(3) / 4)  # by one place
        >>> filtered(torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, 4.0]), shift, [4], [-1])[1].round(decimals=4)
        tensor([4., 1., 2., 3.])
    """
    arguments = list(sizes), list(dims)
    kernel = torch.fft.irfftn(weight, *arguments)
    expectation, variance = (
        torch.fft.irfftn(torch.fft.rfftn(x, *arguments) * torch.fft.rfftn(k, *arguments), *arguments)
        for x, k in ((mean, kernel), (var, kernel.square()))
    )
    return expectation, variance.clamp(min=0)
