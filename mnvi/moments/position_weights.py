"""How the covariance between two positions goes through a layer whose noisy weights act at every position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnvi.moments.affine import Affine
from mnvi.moments.positions import over_positions, some_positions
from mnvi.moments.precision import full_precision, widened
from mnvi.moments.products import outer


def through_weights(
    affine: Affine,
    mean: Tensor,
    var: Tensor | None,
    shared: Tensor | None,
    weight: Tensor,
    spread: Tensor,
    bias_spread: Tensor | None,
    variance: Tensor,
) -> Tensor:
    r"""Covariance between two positions of the output of a layer with random weights.

    The mean of the output over its n positions has the variance

    .. math:: s_i = \sum_{jk} s_{ijk}\Big(\bar x_{jk}^2 + f_k^2 c_j + f_k\frac{v_j - c_j}{n}\Big)
              + \sum_j \Big(\sum_k f_k m_{ijk}\Big)^2 c_j
              + \sum_{jl} \Big(\sum_{k\in l} \sqrt{f_k} m_{ijk}\Big)^2 \frac{v_j - c_j}{n} + s_{b,i},

    from which :math:`c'_i = (n s_i - v'_i)/(n - 1)`. :math:`\bar x_{jk}` is the mean over output positions of the input
    that tap k sees, zero where the tap sees padding, and :math:`f_k` the fraction of output positions where it sees the
    input. The taps of a set l see the same inputs: with stride 1 there is one set. A matrix product has one tap. Exact
    for a known input; otherwise if channels are independent and the covariance of all pairs of positions is the same.

    Args:
        affine: the linear operation.
        mean, var: the input's moments; no variances for a known input.
        shared: c of the input, or None if its positions are independent.
        weight: m.
        spread: the weights' variances s, in the shape of ``weight``.
        bias_spread: the biases' variances, or None.
        variance: the variances v' of the output.

    Example:
        >>> import torch
        >>> tokens, weight = torch.ones(1, 5, 2), torch.ones(1, 2)
        >>> through_weights(Affine(), tokens, None, None, weight, 0.1 * weight, None, torch.full((1, 5, 1), 0.2))
        tensor([[[0.2000]]])
    """
    with full_precision(mean):
        mean, weight, spread = widened(mean), widened(weight), widened(spread)
        count = math.prod([variance.shape[d] for d in layer_positions(affine, variance.dim())])
        inside, outside = (_at_one_position(affine, t) for t in (mean, variance))
        after = over_positions(some_positions(variance, outside), outside)
        own = None
        if var is not None:
            own = over_positions(some_positions(widened(var), inside), inside)
            own = (own if shared is None else own - shared) / count
        if affine.stride is None:
            seen, taps, operation = over_positions(mean, inside), [], affine
        else:
            weight, spread = (_forwards(affine, t) for t in (weight, spread))
            taps = [_taps(affine, axis, weight, mean, variance) for axis in range(-len(affine.stride), 0)]
            seen, operation = _seen(mean, taps), _at_a_single_position(affine)
        fraction = outer([t.sum(1) for t in taps]) if taps else torch.ones(())
        kernel = tuple(range(2, weight.dim()))
        second_moment = seen.square()
        if shared is not None:
            second_moment = second_moment + fraction.square() * shared
        if own is not None:
            second_moment = second_moment + fraction * own
        total = operation(second_moment, spread)
        if shared is not None:
            total = total + operation(shared, _sum(weight * fraction, kernel).square())
        if own is not None:
            sets = _in_sets(affine, weight * fraction.sqrt())
            total = total + operation(own, _sum(sets.square(), kernel))
        if bias_spread is not None:
            total = total + affine.along_input(widened(bias_spread))
        return (count * total - after) / (count - 1)


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


def _at_a_single_position(affine: Affine) -> Affine:
    """The convolution of an input of the kernel's size, which has one output position."""
    assert affine.stride is not None
    ones, zeros = (1,) * len(affine.stride), (0,) * len(affine.stride)
    return Affine(ones, zeros, ones, False, zeros, affine.groups)


def _sum(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    return values.sum(dims, keepdim=True) if dims else values


def _forwards(affine: Affine, weight: Tensor) -> Tensor:
    """Weights of a transposed convolution, [in, out / groups, kernel...], as [out, in / groups, kernel...]."""
    if not affine.transposed:
        return weight
    return weight.unflatten(0, (affine.groups, -1)).transpose(1, 2).flatten(0, 1)


def _taps(affine: Affine, axis: int, weight: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """[kernel, inputs]: 1 / outputs where some output sees the input through the tap, 0 elsewhere."""
    assert affine.stride is not None
    stride, padding, dilation = affine.stride[axis], affine.padding[axis], affine.dilation[axis]
    outputs = variance.shape[axis]
    place = torch.arange(mean.shape[axis], device=mean.device)
    offset = dilation * torch.arange(weight.shape[axis], device=mean.device)[:, None]
    if affine.transposed:
        output = place * stride - padding + offset
        used = (output >= 0) & (output < outputs)
    else:
        first = place + padding - offset
        used = (first % stride == 0) & (first >= 0) & (first < stride * outputs)
    return used.to(mean.dtype) / outputs


def _seen(mean: Tensor, taps: list[Tensor]) -> Tensor:
    """[..., in, kernel...]: the mean over outputs of what each tap sees."""
    for axis in range(-1, -1 - len(taps), -1):
        mean = (mean.movedim(axis, -1) @ taps[axis].T).movedim(-1, axis)
    return mean


def _in_sets(affine: Affine, weight: Tensor) -> Tensor:
    """[out, in, sets...]: weights summed over taps that see the same inputs, which a stride divides into sets."""
    if affine.stride is None:
        return weight
    for axis, stride in enumerate(affine.stride):
        tap = torch.arange(weight.shape[2], device=weight.device) * affine.dilation[axis]
        first = torch.arange(1 if affine.transposed else stride, device=weight.device)
        member = (tap[:, None] % len(first) == first).to(weight.dtype)
        weight = torch.tensordot(weight, member, dims=([2], [0]))
    return weight
