r"""Positions share weights: how the covariance between two positions of a channel goes through a network.

The same noisy weights act at every position, so the errors of two positions go together, and an average over positions
does not remove them. One number for each example and channel describes this: ``shared``, the mean covariance c between
two different positions of the channel. It broadcasts against the value: its size is 1 in the dimensions of the
positions, e.g. [batch, channels, 1, 1] beside an image and [batch, 1, channels] beside tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mnvi.moments.affine import Affine
from mnvi.moments.normal import SMALLEST_VARIANCE
from mnvi.moments.precision import full_precision, widened

_SAMPLED = 64  # positions that represent all others where a mean over positions is enough


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
    """At most 64 evenly spaced positions, which cost next to nothing and have nearly the same mean.

    Example:
        >>> import torch
        >>> some_positions(torch.arange(300.0)[None], torch.zeros(1, 1)).shape
        torch.Size([1, 60])
    """
    dims = position_dims(values.shape, shared)
    index: list[slice] = [slice(None)] * values.dim()
    for d in dims:
        step = math.ceil(values.shape[d] / _SAMPLED ** (1 / len(dims)))
        step += 1 - step % 2  # odd, so that all phases of a stride of two take part
        index[d] = slice(min(step // 2, values.shape[d] - 1), None, step)
    return values[tuple(index)]


def through_weights(
    affine: Affine,
    mean: Tensor,
    shared: Tensor | None,
    weight: Tensor,
    spread: Tensor,
    bias_spread: Tensor | None,
    outputs: Sequence[int],
) -> Tensor:
    r"""Covariance between two positions of the output of a layer with random weights.

    .. math:: c'_i = \sum_{jk} s_{ijk}(\bar x_{jk}^2 + f_k^2 c_j) + \sum_j \Big(\sum_k f_k m_{ijk}\Big)^2 c_j + s_{b,i}

    :math:`\bar x_{jk}` is the mean over output positions of the input that tap k sees, zero where the tap sees padding,
    and :math:`f_k` the fraction of output positions where it sees the input. A matrix product has a single tap. Exact
    if channels are independent and the covariance between all pairs of input positions is the same.

    Args:
        affine: the linear operation.
        mean: the input's means.
        shared: c of the input, or None if its positions are independent.
        weight: m.
        spread: the weights' variances s, in the shape of ``weight``.
        bias_spread: the biases' variances, or None.
        outputs: the shape of the output.

    Example:
        >>> import torch
        >>> tokens, weight = torch.ones(1, 5, 2), torch.ones(1, 2)
        >>> through_weights(Affine(), tokens, None, weight, 0.1 * weight, None, (1, 5, 1))
        tensor([[[0.2000]]])
    """
    with full_precision(mean):
        mean, weight, spread = widened(mean), widened(weight), widened(spread)
        if affine.stride is None:
            like = mean[(slice(None), *[slice(1)] * (mean.dim() - 2))] if shared is None else shared
            seen = over_positions(mean, like).square()
            total = affine(seen if shared is None else seen + shared, spread)
            if shared is not None:
                total = total + affine(shared, weight.square())
            return total if bias_spread is None else total + widened(bias_spread)
        weight, spread = (_forwards(affine, t) for t in (weight, spread))
        dims = weight.dim() - 2
        taps = [
            _taps(affine, axis, weight.shape[2 + axis], mean.shape[axis - dims], outputs[axis - dims], mean)
            for axis in range(dims)
        ]
        seen = _seen(mean, taps).square()
        fraction = _outer([t.sum(1) for t in taps])
        ones, zeros = (1,) * dims, (0,) * dims
        single = Affine(ones, zeros, ones, False, zeros, affine.groups)
        if shared is not None:
            seen = seen + fraction.square() * shared
        total = single(seen, spread)
        if shared is not None:
            total = total + single(shared, (weight * fraction).sum(tuple(range(2, 2 + dims)), keepdim=True).square())
        return total if bias_spread is None else total + affine.along_input(widened(bias_spread))


def _forwards(affine: Affine, weight: Tensor) -> Tensor:
    """Weights of a transposed convolution, [in, out / groups, kernel...], as [out, in / groups, kernel...]."""
    if not affine.transposed:
        return weight
    return weight.unflatten(0, (affine.groups, -1)).transpose(1, 2).flatten(0, 1)


def _taps(affine: Affine, axis: int, kernel: int, inputs: int, outputs: int, like: Tensor) -> Tensor:
    """[kernel, inputs]: 1 / outputs where some output sees the input through the tap, 0 elsewhere."""
    assert affine.stride is not None
    stride, padding, dilation = affine.stride[axis], affine.padding[axis], affine.dilation[axis]
    place = torch.arange(inputs, device=like.device)
    offset = dilation * torch.arange(kernel, device=like.device)[:, None]
    if affine.transposed:
        output = place * stride - padding + offset
        used = (output >= 0) & (output < outputs)
    else:
        first = place + padding - offset
        used = (first % stride == 0) & (first >= 0) & (first < stride * outputs)
    return used.to(like.dtype) / outputs


def _seen(mean: Tensor, taps: list[Tensor]) -> Tensor:
    """[..., in, kernel...]: the mean over outputs of what each tap sees."""
    dims = len(taps)
    seen = mean @ taps[-1].T
    for axis in range(dims - 2, -1, -1):
        kept = seen.shape[axis - dims + 1 :]
        seen = (taps[axis] @ seen.flatten(axis - dims + 1)).unflatten(-1, kept)
    return seen


def _outer(vectors: list[Tensor]) -> Tensor:
    total = vectors[0]
    for vector in vectors[1:]:
        total = total[..., None] * vector
    return total


def correlation(var: Tensor, shared: Tensor) -> Tensor:
    r"""Correlation between two positions, :math:`r = c / \bar v`, between 0 and 1, in the shape of ``shared``.

    Example:
        >>> import torch
        >>> correlation(torch.tensor([[1.0, 3.0]]), torch.ones(1, 1))
        tensor([[0.5000]])
    """
    return (shared / over_positions(var, shared).clamp(min=SMALLEST_VARIANCE)).clamp(0, 1)


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


def through_slope(shared: Tensor, slope: Tensor) -> Tensor:
    r"""Covariance after an elementwise function: :math:`c' = \overline{E[f'(Z)]}^2\,c`, to first order in c.

    Args:
        shared: c.
        slope: :math:`E[f'(Z)]` at some positions.

    Example:
        >>> import torch
        >>> through_slope(torch.ones(1, 1), torch.tensor([[0.0, 1.0]]))
        tensor([[0.2500]])
    """
    return shared * over_positions(slope, shared).square()


def relu_slope(mean: Tensor, var: Tensor) -> Tensor:
    r""":math:`E[f'(Z)] = \Phi(\mu/\sigma)` of a ReLU.

    Example:
        >>> import torch
        >>> relu_slope(torch.zeros(1), torch.ones(1))
        tensor([0.5000])
    """
    return torch.special.ndtr(mean.to(var.dtype) * var.clamp(min=SMALLEST_VARIANCE).rsqrt())


def slope(expectation: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor) -> Tensor:
    r""":math:`E[f'(Z)] = \frac{d}{d\mu} E[f(Z)]`, as a central difference of the expectation.

    The expectation is f smoothed over a distance σ, so a step of σ/4 is off by about 1 %. Where σ is tiny the step is a
    thousandth of the mean, which float32 resolves.

    Args:
        expectation: :math:`E[f(Z)]` as a function of the means.
        mean, var: of Z.

    Example:
        >>> import torch
        >>> slope(torch.square, torch.ones(1), torch.ones(1))
        tensor([2.])
    """
    wide = mean.to(var.dtype)
    step = torch.maximum(0.25 * var.sqrt(), 1e-3 * (1 + wide.abs())).detach()
    return (expectation(wide + step) - expectation(wide - step)) / (2 * step)


def product(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    r"""Covariance between positions of a product of independent factors.

    .. math:: c' = \bar x^2 c_y + \bar y^2 c_x + c_x c_y

    Args:
        first, second: the mean over positions and c of each factor.

    Example:
        >>> import torch
        >>> one, two = torch.ones(1), torch.full((1,), 2.0)
        >>> product((one, one), (two, one))
        tensor([6.])
    """
    (x, shared_x), (y, shared_y) = first, second
    return x.square() * shared_y + y.square() * shared_x + shared_x * shared_y


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
