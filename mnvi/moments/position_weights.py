"""How the covariance between two positions goes through a layer whose noisy weights act at every position."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments._torch import is_traced
from mnvi.moments.affine import Affine
from mnvi.moments.position_rows import over_pairs, some_positions
from mnvi.moments.positions import mean_product, over_positions
from mnvi.moments.precision import full_precision, widened

_FEW = 64  # output positions; among more than these, pairs that see the same inputs do not count


class Window(NamedTuple):
    """The taps of a convolution: how much of the input each of them sees."""

    fractions: list[float]
    """For each tap, the fraction of output positions where it sees the input and not padding."""
    sets: list[int]
    """For each tap, the number of its set: the taps of a set see the same inputs. Stride 1 gives one set."""

    @property
    def overlaps(self) -> bool:
        return len(set(self.sets)) < len(self.sets)


def through_weights(
    affine: Affine,
    mean: Tensor,
    var: Tensor | None,
    shared: Tensor | None,
    weight: Tensor,
    spread: Tensor,
    bias_spread: Tensor | None,
    sizes: tuple[int, ...],
    picked: Tensor | None = None,
) -> Tensor:
    r"""Covariance between two positions of the output of a layer with random weights.

    .. math:: c'_i = \sum_j \Big[\sum_k f_k^2 s_{ijk}\,(\pi_j + c_j) + \Big(\sum_k f_k m_{ijk}\Big)^2 c_j
              + o_{ij}\,\frac{v_j - c_j}{n - 1}\Big] + s_{b,i}, \qquad
              o_{ij} = \sum_l\Big(\sum_{k\in l}\sqrt{f_k}\,m_{ijk}\Big)^2 - \sum_k f_k m_{ijk}^2

    :math:`\pi_j` is the mean of :math:`x_{jp} x_{jq}` over pairs of different positions, :math:`f_k` the fraction of
    the n output positions where tap k sees the input instead of padding. Two outputs see some inputs through different
    taps; o counts them, where the taps of a set l see the same inputs. With stride 1 there is one set. Among more than
    64 positions such pairs are rare, and o is left out. Nothing is as large as the output: all sums are matrix products
    of one row for each example.

    Exact for a matrix product and for kernels of one position, if all positions of the input are used and channels are
    independent. Approximate in other cases: every tap sees an input of the same mean product, which it does up to the
    border; 16 positions of a random input represent all of them; all pairs of positions have the same covariance.

    Args:
        affine: the linear operation.
        mean, var: the input's moments; no variances for a known input.
        shared: c of the input, or None if its positions are independent.
        weight: m.
        spread: the weights' variances s, in the shape of ``weight``.
        bias_spread: the biases' variances, or None.
        sizes: the shape of the output.
        picked: the means at some positions, if they are at hand: [batch, positions, channels].

    Example:
        >>> import torch
        >>> tokens, weight = torch.ones(1, 5, 2), torch.ones(1, 2)
        >>> through_weights(Affine(), tokens, None, None, weight, 0.1 * weight, None, (1, 5, 1))
        tensor([[[0.2000]]])
    """
    with full_precision(mean):
        weight, spread = _forwards(affine, widened(weight)), _forwards(affine, widened(spread))
        one = _at_one_position(affine, mean)
        product = _mean_product(mean, var, one, picked)
        dims = layer_positions(affine, len(sizes))
        window = _window(affine, weight.shape[2:], *([shape[d] for d in dims] for shape in (mean.shape, sizes)))
        operation = _on_pooled(affine)
        noise = _over_taps(spread, [f * f for f in window.fractions])
        if shared is None:
            total = operation(product, noise)
        else:
            total = operation(product + shared, noise)
            total = total + operation(shared, _over_taps(weight, window.fractions).square())
        count = math.prod([sizes[d] for d in dims])
        if var is not None and window.overlaps and count <= _FEW:
            own = over_positions(some_positions(widened(var), one), one)
            own = (own if shared is None else own - shared) / (count - 1)
            total = total + operation(own, _overlap(weight, window))
        return total if bias_spread is None else total + affine.along_input(widened(bias_spread))


def _mean_product(mean: Tensor, var: Tensor | None, one: Tensor, picked: Tensor | None) -> Tensor:
    """:math:`\\pi`, in the shape of ``one``, an input of one position."""
    some = mean if var is None else some_positions(mean, one) if picked is None else picked
    if picked is None:
        product = mean_product(widened(some), one)
    else:
        count = picked.shape[1]
        product = (over_pairs(picked) / (count * (count - 1))).view(one.shape)
    # of all positions it is hardly negative, of a few it can be
    return product.clamp(min=0) if some.numel() < mean.numel() else product


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
        return Window([1.0], [0])
    if is_traced():  # sizes may be symbols
        return _seen(affine, kernel, inputs, outputs)
    return _seen_before(affine, tuple(kernel), tuple(inputs), tuple(outputs))


def _seen(affine: Affine, kernel: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> Window:
    assert affine.stride is not None
    fractions, sets = [], []  # for each axis, for each tap
    for axis in range(-len(affine.stride), 0):
        seen, stride = [], affine.stride[axis]
        for tap in range(kernel[axis]):
            offset = tap * affine.dilation[axis] - affine.padding[axis]
            if affine.transposed:  # tap and input make the output input * stride + offset
                first, last = -(offset // stride), (outputs[axis] - 1 - offset) // stride
                count = min(last, inputs[axis] - 1) - max(first, 0) + 1
            else:  # tap and output see the input output * stride + offset
                first, last = -(offset // stride), (inputs[axis] - 1 - offset) // stride
                count = min(last, outputs[axis] - 1) - max(first, 0) + 1
            seen.append(max(count, 0) / outputs[axis])
        fractions.append(seen)
        sets.append([0 if affine.transposed else t * affine.dilation[axis] % stride for t in range(len(seen))])
    names = list(itertools.product(*sets))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return Window([math.prod(f) for f in itertools.product(*fractions)], [numbers[name] for name in names])


_seen_before = functools.lru_cache(256)(_seen)


def _over_taps(weight: Tensor, factors: list[float]) -> Tensor:
    """[out, in, kernel...] summed over the taps with these factors, with size 1 for the kernel."""
    if weight.dim() == 2 or len(factors) == 1:
        return weight if factors[0] == 1 else weight * factors[0]
    sums = torch.mv(weight.flatten(2).flatten(0, 1), _constant(factors, weight))
    return sums.view(*weight.shape[:2], *(1,) * (weight.dim() - 2))


def _overlap(weight: Tensor, window: Window) -> Tensor:
    """o, [out, in, 1...]."""
    sets = range(max(window.sets) + 1)
    members = [[f**0.5 * (one == number) for one in sets] for f, number in zip(*window, strict=True)]
    sums = (weight.flatten(2) @ _constant(members, weight)).square().sum(-1)
    squares = _over_taps(weight.square(), window.fractions)
    return sums.view_as(squares) - squares


def _constant(values: list, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)
