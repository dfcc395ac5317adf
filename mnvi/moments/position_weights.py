"""How the covariance between two positions goes through a layer whose noisy weights act at every position."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments._torch import is_traced
from mnvi.moments.affine import Affine
from mnvi.moments.normal import SMALLEST_VARIANCE
from mnvi.moments.position_rows import position_dims, rows, some_positions
from mnvi.moments.precision import full_precision, widened

_FEW = 64  # output positions; among more than these, pairs that see the same inputs do not count


class Window(NamedTuple):
    """The taps of a convolution: how much of the input each of them sees, and which of them see it together."""

    fractions: list[float]
    """For each tap, the fraction of output positions where it sees the input and not padding."""
    sets: list[int]
    """For each tap, the number of its set: the taps of a set see the same inputs. Stride 1 gives one set."""
    together: list[list[list[float]]]
    """For each axis and each pair of places along it, the fraction of output positions where both see the input."""

    @property
    def overlaps(self) -> bool:
        return len(set(self.sets)) < len(self.sets)


class PairSums(NamedTuple):
    """Sums over the taps for what pairs of them add to a variance V, each [out, in / groups, 1...]."""

    spreads: Tensor
    r""":math:`\sum_k f_k s_k`"""
    squares: Tensor
    r""":math:`\sum_k f_k m_k^2`"""
    pairs: Tensor
    r""":math:`\sum_{k \ne l} f_{kl} m_k m_l`"""


class TapSums(NamedTuple):
    """Sums over the taps that depend on weights alone, each [out, in / groups, 1...]."""

    noise: Tensor
    r""":math:`\sum_k f_k^2 s_k`"""
    mean: Tensor
    r""":math:`(\sum_k f_k m_k)^2`"""
    overlap: Tensor | None
    """o, or None if it does not count."""
    pairs: PairSums | None
    """For V; None for a single tap."""


class Through(NamedTuple):
    """What positions that share weights make of a layer's output."""

    shared: Tensor
    """c', the covariance between two of its positions."""
    growth: Tensor | None
    """The factor by which its variances grow, in the shape of c'; None for 1."""


def through_weights(
    affine: Affine,
    mean: Tensor,
    var: Tensor | None,
    shared: Tensor | None,
    sums: TapSums,
    bias_spread: Tensor | None,
    sizes: Sequence[int],
    picked: Tensor | None = None,
) -> Through:
    r"""Covariance between two positions of the output of a layer with random weights, and what c adds to variances.

    .. math:: c'_i &= \sum_j \Big[\sum_k f_k^2 s_{ijk}\,(\pi_j + c_j) + \Big(\sum_k f_k m_{ijk}\Big)^2 c_j
              + o_{ij}\,\frac{v_j - c_j}{n - 1}\Big] + s_{b,i} \\
              o_{ij} &= \sum_l\Big(\sum_{k\in l}\sqrt{f_k}\,m_{ijk}\Big)^2 - \sum_k f_k m_{ijk}^2 \\
              V_i(p) &\leftarrow V_i(p) + V_i(p)\, \frac{\sum_j c_j \sum_{k\ne l} f_{kl} m_{ijk} m_{ijl}}{\bar V_i}

    :math:`\pi_j` is the mean of :math:`x_{jp} x_{jq}` over pairs of different positions, :math:`f_k` the fraction of
    the n output positions where tap k sees the input instead of padding, :math:`f_{kl}` the fraction where taps k and
    l both do. Two outputs see some inputs through different taps; o counts them, where the taps of a set l see the
    same inputs. With stride 1 there is one set. Among more than 64 positions such pairs are rare, and o is left out.

    V is what the layer gives for independent entries. The taps of one output see different positions of a channel,
    whose covariance is c. What it adds, on average over the outputs, is the numerator above. It grows where the
    variances of the inputs are large, as V does, so it is added in proportion to V: zero variances stay zero. Its mean
    is exact, with the mean of V

    .. math:: \bar V_i = \sum_j \Big[\sum_k f_k s_{ijk}\,(\overline{x_j^2} + v_j) + \sum_k f_k m_{ijk}^2 v_j\Big]

    The numerator may be negative, where taps of both signs cancel an error that they share. With c between
    :math:`-v/(n-1)` and v, its bounds for n inputs of variance v, the sum of the numerator and
    :math:`\sum_{jk} f_k m_{ijk}^2 v_j` is the mean variance of sums with known weights, so it is not negative: what is
    left is at least :math:`\sum_{jk} f_k s_{ijk}(\overline{x_j^2} + v_j)`, the weights' own noise.

    Nothing but the last product is as large as the output: all sums are matrix products of one row for each example.

    Exact for a matrix product and for kernels of one position, if all positions of the input are used and channels are
    independent. Approximate in other cases: every tap sees an input of the same mean product, which it does up to the
    border; 16 positions of a random input represent all of them; all pairs of positions have the same covariance.

    Args:
        affine: the linear operation.
        mean, var: the input's moments; no variances for a known input.
        shared: c of the input, or None if its positions are independent.
        sums: from :func:`tap_sums`.
        bias_spread: the biases' variances, or None.
        sizes: the shape of the output.
        picked: the means at some positions, if they are at hand: [batch, positions, channels].

    Example:
        >>> import torch
        >>> tokens, weight = torch.ones(1, 5, 2), torch.ones(1, 2)
        >>> sums = tap_sums(Affine(), tokens.shape, (1, 5, 1), weight, 0.1 * weight)
        >>> through_weights(Affine(), tokens, None, None, sums, None, (1, 5, 1)).shared
        tensor([[[0.2000]]])
    """
    with full_precision(mean):
        one = _at_one_position(affine, mean)
        product, square = _products(mean, var, one, picked)
        operation = _on_pooled(affine)
        own = None if var is None else _mean(widened(var), one)
        total = operation(product if shared is None else product + shared, sums.noise)
        if shared is not None:
            total = total + operation(shared, sums.mean)
        if own is not None and sums.overlap is not None:
            apart = own if shared is None else own - shared
            count = math.prod([sizes[d] for d in layer_positions(affine, len(sizes))])
            total = total + operation(apart / (count - 1), sums.overlap)
        if bias_spread is not None:
            total = total + affine.along_input(widened(bias_spread))
        growth = None
        if own is not None and shared is not None and sums.pairs is not None:
            count = math.prod([mean.shape[d] for d in layer_positions(affine, mean.dim())])
            shared = torch.minimum(torch.maximum(shared, -own / max(count - 1, 1)), own)
            alone = operation(square + own, sums.pairs.spreads) + operation(own, sums.pairs.squares)
            added = operation(shared, sums.pairs.pairs)
            growth = (1 + added / alone.clamp(min=SMALLEST_VARIANCE)).clamp(min=0)  # rounding alone is below 0
        return Through(total, growth)


def grow(var: Tensor, growth: Tensor) -> Tensor:
    """Variances times :attr:`Through.growth`; what is kept for the gradient is the result, which others keep too.

    Example:
        >>> import torch
        >>> grow(torch.ones(1, 1, 2), torch.full((1, 1, 1), 3.0))
        tensor([[[3., 3.]]])
    """
    if torch.is_grad_enabled() and not is_traced() and (var.requires_grad or growth.requires_grad):
        grown: Tensor = _Grow.apply(var, growth)
        return grown
    return var * growth


class _Grow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, var: Tensor, growth: Tensor) -> Tensor:
        out = var * growth
        ctx.save_for_backward(out, growth)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        out, growth = ctx.saved_tensors
        to_var, to_growth = ctx.needs_input_grad
        by_growth = (grad * out).sum_to_size(growth.shape) / growth.clamp(min=SMALLEST_VARIANCE) if to_growth else None
        return grad * growth if to_var else None, by_growth


def tap_sums(affine: Affine, inputs: Sequence[int], outputs: Sequence[int], weight: Tensor, spread: Tensor) -> TapSums:
    """The sums over taps that :func:`through_weights` needs, for an input and an output of these shapes.

    Args:
        affine: the linear operation.
        inputs, outputs: shapes of the input and the output.
        weight: m.
        spread: the weights' variances s, in the shape of ``weight``.

    Example:
        >>> import torch
        >>> affine = Affine((1,), (0,), (1,), False, (0,), 1)
        >>> tap_sums(affine, (1, 1, 4), (1, 1, 3), torch.ones(1, 1, 2), torch.ones(1, 1, 2)).pairs.pairs
        tensor([[[2.]]])
    """
    with full_precision(weight):
        weight, spread = _forwards(affine, widened(weight)), _forwards(affine, widened(spread))
        dims = layer_positions(affine, len(outputs))
        window = _window(affine, weight.shape[2:], *([shape[d] for d in dims] for shape in (inputs, outputs)))
        noise = _over_taps(spread, [f * f for f in window.fractions])
        mean = _over_taps(weight, window.fractions).square()
        if len(window.fractions) == 1:
            return TapSums(noise, mean, None, None)
        few = math.prod([outputs[d] for d in dims]) <= _FEW
        spreads = _over_taps(spread, window.fractions)
        squares = _over_taps(weight.square(), window.fractions)
        overlap = _overlap(weight, window, squares) if few and window.overlaps else None
        return TapSums(noise, mean, overlap, PairSums(spreads, squares, _pairs(weight, window, squares)))


def _products(mean: Tensor, var: Tensor | None, one: Tensor, picked: Tensor | None) -> tuple[Tensor, Tensor]:
    """:math:`\\pi` and the mean square of x, in the shape of ``one``, an input of one position."""
    if picked is None:
        some = widened(mean if var is None else some_positions(mean, one))
        picked = rows(some, position_dims(some.shape, one))
    count = picked.shape[1]
    squares = picked.square().sum(1)
    product = squares if count == 1 else (picked.sum(1).square() - squares) / (count * (count - 1))
    if squares.numel() * count < mean.numel():  # of all positions it is hardly negative, of a few it can be
        product = product.clamp(min=0)
    return product.view(one.shape), (squares / count).view(one.shape)


def _mean(values: Tensor, one: Tensor) -> Tensor:
    """The mean over some positions, in the shape of ``one``."""
    some = some_positions(values, one)
    return rows(some, position_dims(some.shape, one)).mean(1).view(one.shape)


def layer_positions(affine: Affine, ndim: int) -> range:
    """Dimensions over which a layer shares its weights: all between batch and units, or those of the kernel.

    Example:
        >>> list(layer_positions(Affine(), 4))
        [1, 2]
    """
    return range(1, ndim - 1) if affine.stride is None else range(ndim - len(affine.stride), ndim)


def _at_one_position(affine: Affine, values: Tensor) -> Tensor:
    dims = layer_positions(affine, values.dim())
    return values[tuple(slice(1) if d in dims else slice(None) for d in range(values.dim()))]


def _on_pooled(affine: Affine) -> Callable[[Tensor, Tensor], Tensor]:
    """The operation on an input of one position, with a kernel of one tap."""
    if affine.stride is None:
        return affine
    ones, zeros = (1,) * len(affine.stride), (0,) * len(affine.stride)
    if affine.groups > 1:
        return Affine(ones, zeros, ones, False, zeros, affine.groups)

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.flatten(affine.channel_dim), weight.flatten(1)).view(
            *x.shape[: affine.channel_dim], -1, *ones
        )

    return product


def _forwards(affine: Affine, weight: Tensor) -> Tensor:
    """Weights of a transposed convolution, [in, out / groups, kernel...], as [out, in / groups, kernel...]."""
    if not affine.transposed:
        return weight
    return weight.unflatten(0, (affine.groups, -1)).transpose(1, 2).flatten(0, 1)


def _window(affine: Affine, kernel: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Window:
    if affine.stride is None:
        return Window([1.0], [0], [])
    if is_traced():  # sizes may be symbols
        return _seen(affine, kernel, inputs, outputs)
    return _seen_before(affine, tuple(kernel), tuple(inputs), tuple(outputs))


def _seen(affine: Affine, kernel: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Window:
    assert affine.stride is not None
    fractions, sets, together = [], [], []  # for each axis, for each tap
    for axis in range(-len(affine.stride), 0):
        stride, dilation = affine.stride[axis], affine.dilation[axis]
        step = stride if affine.transposed else 1
        ranges = []  # of the outputs where each tap sees the input
        for tap in range(kernel[axis]):
            offset = tap * dilation - affine.padding[axis]
            if affine.transposed:  # tap and input make the output input * stride + offset
                first, last = -(offset // stride), (outputs[axis] - 1 - offset) // stride
                first, last = max(first, 0) * stride + offset, min(last, inputs[axis] - 1) * stride + offset
            else:  # tap and output see the input output * stride + offset
                first, last = -(offset // stride), (inputs[axis] - 1 - offset) // stride
                first, last = max(first, 0), min(last, outputs[axis] - 1)
            ranges.append((first, last))
        both = [
            [
                _common(one, other, step) / outputs[axis] if (k - tap) * dilation % step == 0 else 0.0
                for k, one in enumerate(ranges)
            ]
            for tap, other in enumerate(ranges)
        ]
        together.append(both)
        fractions.append([both[tap][tap] for tap in range(len(both))])
        sets.append([0 if affine.transposed else t * dilation % stride for t in range(len(both))])
    names = list(itertools.product(*sets))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return Window([math.prod(f) for f in itertools.product(*fractions)], [numbers[name] for name in names], together)


def _common(one: tuple[int, int], other: tuple[int, int], step: int) -> int:
    """Number of entries that two ranges share, which have the same step and are not shifted against each other."""
    return max((min(one[1], other[1]) - max(one[0], other[0])) // step + 1, 0)


_seen_before = functools.lru_cache(256)(_seen)


def _over_taps(weight: Tensor, factors: list[float]) -> Tensor:
    """[out, in, kernel...] summed over the taps with these factors, with size 1 for the kernel."""
    if weight.dim() == 2 or len(factors) == 1:
        return weight if factors[0] == 1 else weight * factors[0]
    sums = torch.mv(weight.flatten(2).flatten(0, 1), _constant(factors, weight))
    return sums.view(*weight.shape[:2], *(1,) * (weight.dim() - 2))


def _overlap(weight: Tensor, window: Window, squares: Tensor) -> Tensor:
    """o, [out, in, 1...]."""
    sets = range(max(window.sets) + 1)
    taps = zip(window.fractions, window.sets, strict=True)
    members = [[f**0.5 * (one == number) for one in sets] for f, number in taps]
    sums = (weight.flatten(2) @ _constant(members, weight)).square().sum(-1)
    return sums.view_as(squares) - squares


def _pairs(weight: Tensor, window: Window, squares: Tensor) -> Tensor:
    """Products of the weights of two taps that see the input together, [out, in, 1...]."""
    together = functools.reduce(torch.kron, [_constant(axis, weight) for axis in window.together])
    taps = weight.flatten(2)
    return ((taps @ together) * taps).sum(-1).view_as(squares) - squares


def _constant(values: list, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)
