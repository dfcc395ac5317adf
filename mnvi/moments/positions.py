r"""Positions share weights: how the covariance between two positions of a channel goes through a network.

The same noisy weights act at every position, so the errors of two positions go together, and an average over positions
does not remove them. One number for each example and channel describes this: ``shared``, the mean covariance c between
two different positions of the channel. It broadcasts against the value: its size is 1 in the dimensions of the
positions, e.g. [batch, channels, 1, 1] beside an image and [batch, 1, channels] beside tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mnvi.moments.affine import Affine
from mnvi.moments.normal import FAR, INV_SQRT_2PI, SMALLEST_VARIANCE
from mnvi.moments.precision import full_precision, widened

_POSITIONS = 36  # that represent all others where a mean over positions is enough
_CHANNELS = 32  # that tell how similar two positions are


def position_dims(shape: Sequence[int], shared: Tensor) -> tuple[int, ...]:
    """Dimensions of the positions in a value of this shape.

    Example:
        >>> import torch
        >>> position_dims((8, 16, 4, 4), torch.zeros(8, 16, 1, 1))
        (2, 3)
    """
    return tuple(d for d, size in enumerate(shared.shape) if size == 1 and shape[d] != 1)


def over_positions(values: Tensor, shared: Tensor) -> Tensor:
    """Mean over the positions, in the shape of ``shared``.

    Example:
        >>> import torch
        >>> over_positions(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 1))
        tensor([[2.]])
    """
    dims = position_dims(values.shape, shared)
    return values.mean(dims, keepdim=True) if dims else values


def some_positions(values: Tensor, shared: Tensor) -> Tensor:
    """At most 36 evenly spaced positions, which cost next to nothing and have nearly the same mean.

    Example:
        >>> import torch
        >>> some_positions(torch.arange(300.0)[None], torch.zeros(1, 1)).shape
        torch.Size([1, 33])
    """
    dims = position_dims(values.shape, shared)
    index: list[slice] = [slice(None)] * values.dim()
    for d in dims:
        step = -(-values.shape[d] // int(_POSITIONS ** (1 / len(dims)) + 1e-9))
        step += step > 2 and step % 2 == 0  # odd, so that all phases of a stride of two take part
        index[d] = slice(min(step // 2, values.shape[d] - 1), None, step)
    return values[tuple(index)]


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
        fraction = _outer([t.sum(1) for t in taps])
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


def _outer(vectors: list[Tensor]) -> Any:
    total: Any = torch.ones(())
    for vector in vectors:
        total = total.to(vector)[..., None] * vector
    return total


def correlation(var: Tensor, shared: Tensor) -> Tensor:
    r"""Correlation between two positions, :math:`r = c / \bar v`, at most 1, in the shape of ``shared``.

    Example:
        >>> import torch
        >>> correlation(torch.tensor([[1.0, 3.0]]), torch.ones(1, 1))
        tensor([[0.5000]])
    """
    return (shared / over_positions(var, shared).clamp(min=SMALLEST_VARIANCE)).clamp(max=1)


def of_a_sum(variance: Tensor, total: Tensor, square: Tensor, correlation: Tensor) -> Tensor:
    r"""Variance of weighted sums over positions that are correlated.

    .. math:: V = \Big[1 + r\Big(\frac{(\sum w)^2}{\sum w^2} - 1\Big)\Big] \sum_i w_i^2 v_i

    For an average over n entries of equal variance this is :math:`v/n + (1 - 1/n)c`.

    Args:
        variance: :math:`\sum w^2 v`, of independent positions.
        total, square: :math:`\sum w` and :math:`\sum w^2`.
        correlation: r.

    Example:
        >>> import torch
        >>> of_a_sum(torch.tensor(0.5), torch.tensor(1.0), torch.tensor(0.5), torch.tensor(1.0))
        tensor(1.)
    """
    return variance * (1 + correlation * (total.square() / square.clamp(min=SMALLEST_VARIANCE) - 1))


def through_slope(shared: Tensor, mean: Tensor, var: Tensor, slope: Tensor, curvature: Tensor) -> Tensor:
    r"""Covariance between positions after an elementwise function f.

    .. math:: \mathrm{Cov}(f(Z_p), f(Z_q)) &\approx E[f'(Z_p)]\,E[f'(Z_q)]\,C_{pq}
              + \tfrac12 E[f''(Z_p)]\,E[f''(Z_q)]\,C_{pq}^2 \\
              C_{pq} &= c + \tfrac12 (v - c)\,\rho_{pq}

    The mean over pairs needs more of the covariances :math:`C_{pq}` than their mean c: positions with similar inputs
    have similar errors, and a ReLU, for example, is open at both of them or closed at both. So the covariance grows
    with the similarity of the means, :math:`\rho_{pq} \propto \sum_j \mu_{jp}\mu_{jq}`, shifted and scaled to have the
    mean 0 over pairs and the mean 1 for p = q, where the covariance is v. It grows faster than linearly: half the slope
    of a straight line is what agrees with sampled weights.

    Args:
        shared: c.
        mean, var: :math:`\mu` and v at some positions.
        slope, curvature: :math:`E[f'(Z)]` and :math:`E[f''(Z)]` at the same positions.

    Example:
        >>> import torch
        >>> mean, one, zero = torch.tensor([[[1.0, -1.0]]]), torch.ones(1, 1, 2), torch.zeros(1, 1, 2)
        >>> through_slope(0.5 * torch.ones(1, 1, 1), mean, one, 2 * one, zero)  # scales by 2
        tensor([[[2.]]])
    """
    mean, var, slope, curvature = (_matrix(t, shared) for t in (mean.to(var.dtype), var, slope, curvature))
    c = _matrix(shared, shared)[..., 0]  # [batch, channels]
    some = mean[:, :: -(-mean.shape[1] // _CHANNELS)]
    similar = torch.matmul(some.transpose(1, 2), some) / some.shape[1]  # [batch, positions, positions]
    itself = similar.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    pair = _over_pairs(similar)[:, None, None]
    similar = (similar - pair) / (itself - pair).clamp(min=1e-3 * itself).clamp(min=SMALLEST_VARIANCE)
    excess = 0.5 * (var.mean(2) - c)
    first = c * _over_pairs_of(slope) + excess * _over_pairs_of(slope, similar)
    second = _over_pairs_of(curvature) * (c.square() + excess.square() * _over_pairs(similar.square())[:, None])
    return (first + 0.5 * second).view(shared.shape)


def _matrix(values: Tensor, shared: Tensor) -> Tensor:
    """[batch, channels, positions]"""
    dims = [d for d in range(1, shared.dim()) if shared.shape[d] == 1]
    others = [d for d in range(values.dim()) if d not in dims]
    flat = values.permute(*others, *dims).flatten(len(others))
    return flat.flatten(1, -2) if len(others) > 1 else flat[None]


def _over_pairs(matrix: Tensor) -> Tensor:
    """Mean of the entries [batch, positions, positions] off the diagonal."""
    count = matrix.shape[-1]
    return (matrix.sum((1, 2)) - matrix.diagonal(dim1=1, dim2=2).sum(1)) / max(count * (count - 1), 1)


def _over_pairs_of(factor: Tensor, matrix: Tensor | None = None) -> Tensor:
    """Mean over pairs p, q of factor_p factor_q matrix_pq, for factors [batch, channels, positions]."""
    count = factor.shape[-1]
    if matrix is None:
        pairs = factor.sum(2).square() - factor.square().sum(2)
    else:
        itself = matrix.diagonal(dim1=1, dim2=2)[:, None]
        pairs = (torch.matmul(factor, matrix) * factor - factor.square() * itself).sum(2)
    return pairs / max(count * (count - 1), 1)


def relu_slope_and_curvature(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`E[f'(Z)] = \Phi(\mu/\sigma)` and :math:`E[f''(Z)] = \varphi(\mu/\sigma)/\sigma` of a ReLU.

    Example:
        >>> import torch
        >>> relu_slope_and_curvature(torch.zeros(1), torch.ones(1))
        (tensor([0.5000]), tensor([0.3989]))
    """
    inverse = var.clamp(min=SMALLEST_VARIANCE).rsqrt()
    ratio = (mean.to(var.dtype) * inverse).clamp(-FAR, FAR)
    return torch.special.ndtr(ratio), torch.exp(-0.5 * ratio.square()) * (INV_SQRT_2PI * inverse)


def slope_and_curvature(
    expectation: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, here: Tensor
) -> tuple[Tensor, Tensor]:
    r""":math:`E[f'(Z)]` and :math:`E[f''(Z)]`, the derivatives of :math:`E[f(Z)]` by the mean, as central differences.

    The expectation is f smoothed over a distance σ, so a step of σ/4 is off by about 1 %. Where σ is tiny the step is a
    thousandth of the mean, which float32 resolves.

    Args:
        expectation: :math:`E[f(Z)]` as a function of the means.
        mean, var: of Z.
        here: the expectation at these means.

    Example:
        >>> import torch
        >>> slope_and_curvature(torch.square, torch.ones(1), torch.ones(1), torch.ones(1))
        (tensor([2.]), tensor([2.]))
    """
    wide = mean.to(var.dtype)
    step = torch.maximum(0.25 * var.detach().sqrt(), 1e-3 * (1 + wide.detach().abs()))
    above, below = expectation(wide + step), expectation(wide - step)
    return (above - below) / (2 * step), (above - 2 * here.to(var.dtype) + below) / step.square()


def mean_product(mean: Tensor, shared: Tensor) -> Tensor:
    r"""Mean over pairs of different positions of :math:`\mu_p\mu_q`.

    Example:
        >>> import torch
        >>> mean_product(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 1))
        tensor([[3.]])
    """
    count = math.prod([mean.shape[d] for d in position_dims(mean.shape, shared)])
    square = over_positions(some_positions(mean, shared).square(), shared)
    return (count * over_positions(mean, shared).square() - square) / max(count - 1, 1)


def product(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    r"""Covariance between positions of a product of independent factors.

    .. math:: c' = \overline{x_p x_q}\,c_y + \overline{y_p y_q}\,c_x + c_x c_y

    Args:
        first, second: the mean product of two positions (:func:`mean_product`) and c of each factor.

    Example:
        >>> import torch
        >>> one, four = torch.ones(1), torch.full((1,), 4.0)
        >>> product((one, one), (four, one))
        tensor([6.])
    """
    (x, shared_x), (y, shared_y) = first, second
    return x * shared_y + y * shared_x + shared_x * shared_y


def weighted(weights: Tensor, var: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    r"""Sums over positions with known weights, as in attention: what correlation adds to the variances, and c.

    .. math:: V_t = c\Big[\Big(\sum_s a_{ts}\Big)^2 - \sum_s a_{ts}^2\Big], \qquad
              c' = c\Big[\Big(\sum_s \bar a_s\Big)^2 - \sum_s \bar a_s^2\Big] + \sum_s \bar a_s^2 v_s

    Sums of the same entries covary even if the entries are independent; :math:`\bar a_s` is the mean weight of entry s.

    Args:
        weights: a, [..., outputs, inputs].
        var, shared: of the inputs, [..., inputs, channels] and [..., 1, channels].

    Example:
        >>> import torch
        >>> weighted(torch.full((2, 2), 0.5), torch.ones(2, 1), torch.zeros(1, 1))
        (tensor([[0.],
                [0.]]), tensor([[0.5000]]))
    """
    average = weights.mean(-2, keepdim=True)
    return shared * _cross(weights), shared * _cross(average) + torch.matmul(average.square(), var)


def _cross(weights: Tensor) -> Tensor:
    return weights.sum(-1, keepdim=True).square() - weights.square().sum(-1, keepdim=True)


def reshaped(shared: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor | None:
    """``shared`` for a value whose shape changed, its entries staying in order; None if positions and channels mix.

    Example:
        >>> import torch
        >>> reshaped(torch.zeros(2, 3, 1, 1), (2, 3, 4, 4), (2, 3, 16)).shape
        torch.Size([2, 3, 1])
        >>> reshaped(torch.zeros(2, 3, 1, 1), (2, 3, 4, 4), (2, 48))
    """
    if 0 in before:
        return None
    sizes: list[int] = []
    start, end = 0, 0
    while start < len(before) or end < len(after):
        olds, news = [start], [end]
        left, right = _size(before, start), _size(after, end)
        while left != right:  # the next group of dimensions that turns into another one of the same size
            if left < right:
                olds.append(olds[-1] + 1)
                left *= before[olds[-1]]
            else:
                news.append(news[-1] + 1)
                right *= after[news[-1]]
        kept = [shared.shape[d] for d in olds if d < len(before) and before[d] != 1]
        whole = [before[d] for d in olds if d < len(before) and before[d] != 1]
        if all(size == 1 for size in kept):
            sizes += [1 for d in news if d < len(after)]
        elif kept == whole:
            sizes += [after[d] for d in news if d < len(after)]
        else:
            return None
        start, end = olds[-1] + 1, news[-1] + 1
    return shared.reshape(sizes)


def _size(shape: Sequence[int], dim: int) -> int:
    return shape[dim] if dim < len(shape) else 1
