"""Fourier transforms of a Gaussian, where their results are real.

A transform returns a :class:`Spectrum`. Its ``real`` and ``imag`` are Gaussians, exact each by itself; transforms along
further dimensions go on (``fft(fft(x, dim=-1), dim=-2).real``). A spectrum from ``rfft`` times a known filter goes back
with ``irfft``: a convolution, exact too. Anything else of a spectrum is an error: how real and imaginary part, or two
frequencies, depend on each other is not tracked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mnvi.moments import fourier
from mnvi.moments.precision import widened
from mnvi.rules.table import RULES, NoRuleError
from mnvi.values.gaussian import Gaussian

_WAY_OUT = "take its .real or .imag, multiply it by a known filter, or go back with torch.fft.irfft"


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The Fourier transform of a Gaussian, kept as what it is made from.

    Args:
        source: the Gaussian.
        sizes: the length of the transform along each of ``dims``.
        dims: the transformed dimensions, counted from the end.
        norm: as in ``torch.fft``.
        inverse: whether the transforms are inverse ones.
        halved: whether only the first half of the last of ``dims`` is there, as ``rfft`` gives it.
        weight: the filter that it was multiplied by.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.Gaussian(torch.zeros(4), torch.ones(4))
        >>> torch.fft.fft(x).real.var
        tensor([4., 2., 4., 2.])
        >>> torch.fft.irfft(2 * torch.fft.rfft(x)).var
        tensor([4., 4., 4., 4.])
    """

    source: Gaussian
    sizes: tuple[int, ...]
    dims: tuple[int, ...]
    norm: str
    inverse: bool
    halved: bool
    weight: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        shape = list(self.source.shape)
        for size, dim in zip(self.sizes, self.dims, strict=True):
            shape[dim] = size
        if self.halved:
            shape[self.dims[-1]] = self.sizes[-1] // 2 + 1
        return torch.Size(shape)

    @property
    def real(self) -> Gaussian:
        return self._parts()[0]

    @property
    def imag(self) -> Gaussian:
        return self._parts()[1]

    def _parts(self) -> tuple[Gaussian, Gaussian]:
        if self.weight is not None:
            raise NoRuleError(
                "no rule for the parts of a filtered spectrum of a Gaussian; go back with torch.fft.irfft first"
            )
        x = self.source
        moments = fourier.parts(widened(x.mean), x.var, self.sizes, self.dims, self.norm, self.inverse)
        if self.halved:
            moments = tuple(t.narrow(self.dims[-1], 0, self.sizes[-1] // 2 + 1) for t in moments)  # type: ignore[assignment]
        return Gaussian.trusted(moments[0], moments[1]), Gaussian.trusted(moments[2], moments[3])

    def __mul__(self, factor: Any) -> Spectrum:
        if isinstance(factor, Gaussian | Spectrum):
            raise NoRuleError(f"no rule for a spectrum times a {type(factor).__name__}; {_WAY_OUT}")
        weight = factor if self.weight is None else self.weight * factor
        return replace(self, weight=weight if isinstance(weight, Tensor) else torch.full((), weight, device="cpu"))

    __rmul__ = __mul__

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func in _ON_A_SPECTRUM:
            return _ON_A_SPECTRUM[func](*args, **(kwargs or {}))
        raise NoRuleError(f"no rule for {func.__name__} on the spectrum of a Gaussian; {_WAY_OUT}")


def _product(input: Any, other: Any) -> Spectrum:
    # not by an operator, which dynamo would dispatch to this function again
    return input.__mul__(other) if isinstance(input, Spectrum) else other.__mul__(input)


def _forward(inverse: bool, halved: bool, default: Sequence[int] | None, plural: bool) -> Callable:
    def answer(input: Any, s: Any = None, dim: Any = None, norm: str | None = None, **named: Any) -> Spectrum:
        s = named.get("n", s)
        dims = _dims(dim, default, len(input.shape), s)
        sizes = tuple(input.shape[d] for d in dims) if s is None else tuple(s if plural else (s,))
        if isinstance(input, Gaussian):
            return Spectrum(input, sizes, dims, norm or "backward", inverse, halved)
        if (
            halved
            or input.weight is not None
            or input.halved
            or (input.norm, input.inverse) != (norm or "backward", inverse)
        ):
            raise NoRuleError(f"no rule for this transform of the spectrum of a Gaussian; {_WAY_OUT}")
        if set(dims) & set(input.dims):
            raise NoRuleError(f"no rule for a second transform along dimension {dims[0]}; {_WAY_OUT}")
        return replace(input, sizes=(*input.sizes, *sizes), dims=(*input.dims, *dims))

    return answer


def _back(default: Sequence[int] | None, plural: bool) -> Callable:
    def answer(input: Spectrum, s: Any = None, dim: Any = None, norm: str | None = None, **named: Any) -> Gaussian:
        s = named.get("n", s)
        dims = _dims(dim, default, len(input.shape), s)
        if not input.halved or dims != input.dims or (norm or "backward") != input.norm:
            raise NoRuleError("no rule for this inverse: it needs a spectrum of rfft with the same dim and norm")
        shape = input.shape
        sizes = [shape[d] for d in dims[:-1]] + [2 * (shape[dims[-1]] - 1)]
        if s is not None:
            sizes = list(s if plural else (s,))
        if tuple(sizes) != input.sizes:
            raise NoRuleError(
                f"no rule for an inverse of length {sizes} of a transform of length {list(input.sizes)}; pass the "
                "length of the input"
            )
        x, weight = input.source, torch.ones((), device="cpu") if input.weight is None else input.weight
        ones = [shape[d] if d in dims else 1 for d in range(-len(shape), 0)]
        weight = weight.to(x.device) * torch.ones(ones, dtype=x.var.dtype, device=x.device)
        mean, var = fourier.filtered(widened(x.mean), x.var, weight + 0j, sizes, dims)
        return Gaussian.trusted(mean.to(x.dtype), var)

    return answer


def _dims(dim: Any, default: Sequence[int] | None, ndim: int, s: Any) -> tuple[int, ...]:
    """The dimensions counted from the end."""
    if dim is None:
        dim = default or (range(-ndim, 0) if s is None else range(-len(s), 0))
    return tuple(d if d < 0 else d - ndim for d in ((dim,) if isinstance(dim, int) else dim))


_ON_A_SPECTRUM: dict[Callable, Callable] = {
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply), _product),
    torch.real: lambda x: x.real,
    torch.imag: lambda x: x.imag,
}
for _suffix, _default in (("fft", (-1,)), ("fft2", (-2, -1)), ("fftn", None)):
    _plural = _suffix != "fft"
    for _prefix, _inverse, _halved in (("", False, False), ("i", True, False), ("r", False, True)):
        _function = getattr(torch.fft, _prefix + _suffix)
        _ON_A_SPECTRUM[_function] = _forward(_inverse, _halved, _default, _plural)
        RULES.rule(_function)(_ON_A_SPECTRUM[_function])
    _ON_A_SPECTRUM[getattr(torch.fft, "ir" + _suffix)] = _back(_default, _plural)
