r"""Normalisations: linear maps once their statistics are given.

Batch norm uses the statistics of the means, see ``batch_norms``. The normalisations here divide each example by
statistics of its own entries, for which they use the expected values: noise adds to the spread that a sample is divided
by, so the results stay bounded however large the variance is. They neglect that the statistics vary around their
expectation, by a fraction of order 1/n for n entries.

Errors against 2·10⁵ samples, means of the entries drawn from a standard normal, variances uniform around 0.01, 0.1 and
1, as root mean squares: layer norm over 16 entries 0.0006, 0.004 and 0.013 in the mean, 9, 8 and 5 % in the standard
deviation; over 64 entries 0.0003, 0.0012 and 0.004, 4, 3 and 2 %. RMS norm is as good in the mean; in the standard
deviation it is off by 11, 10 and 7 %, and 5, 5 and 3 %. With statistics of only the means, layer norm over 64 entries
would be off by 0.005, 0.04 and 0.28, 4, 6 and 39 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments.batch_norms import batch_norm, per_channel
from mnvi.moments.checking import check_number
from mnvi.moments.precision import widened


def layer_norm(
    mean: Tensor,
    var: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    r"""Moments of layer normalisation over the n entries of the last dimensions, m the mean of their means.

    .. math:: E = \gamma\frac{\mu - m}{\sqrt{s + \epsilon}} + \beta, \qquad
              V = \frac{\gamma^2}{s + \epsilon}\Big[\big(1 - \tfrac2n\big)v + \frac1{n^2}\sum_i v_i\Big], \qquad
              s = \frac1n\sum_i\Big[(\mu_i - m)^2 + \frac{n-1}{n}v_i\Big]

    s is the expected variance of the entries. The bracket in V is the variance of an entry minus the mean of all, which
    includes that entry. A single entry is its own mean: V = 0.

    Args:
        mean, var: the input's moments.
        normalized_shape, weight, bias, eps: as in ``torch.nn.functional.layer_norm``.

    Example:
        >>> import torch
        >>> layer_norm(torch.tensor([[-2.0, 2.0]]), torch.zeros(1, 2), [2], eps=0.0)
        (tensor([[-1.,  1.]]), tensor([[0., 0.]]))
        >>> layer_norm(torch.zeros(1, 3), torch.full((1, 3), 9.0), [3], eps=0.0)
        (tensor([[0., 0., 0.]]), tensor([[1., 1., 1.]]))
    """
    dims = _last_dims("layer_norm", normalized_shape, mean)
    return _affine(*_standardised(mean, var, dims, eps), weight, bias, mean)


def rms_norm(
    mean: Tensor, var: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    r"""Moments of root-mean-square normalisation, s the expected mean square over the last dimensions.

    .. math:: E = \gamma\frac{\mu}{\sqrt{s + \epsilon}}, \qquad V = \frac{\gamma^2}{s + \epsilon}\,v, \qquad
              s = \frac1n\sum_i \mu_i^2 + v_i

    Args:
        mean, var: the input's moments.
        normalized_shape, weight, eps: as in ``torch.nn.functional.rms_norm``.

    Example:
        >>> import torch
        >>> rms_norm(torch.full((1, 2), 2.0), torch.zeros(1, 2), [2], eps=0.0)
        (tensor([[1., 1.]]), tensor([[0., 0.]]))
    """
    dims = _last_dims("rms_norm", normalized_shape, mean)
    if eps is None:
        eps = torch.finfo(mean.dtype).eps
    return _affine(*_standardised(mean, var, dims, eps, centred=False), weight, None, mean)


def group_norm(
    mean: Tensor,
    var: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    r"""Moments of group normalisation: :func:`layer_norm` over each group of channels and the dimensions after.

    Args:
        mean, var: the input's moments, [batch, channels, ...].
        num_groups, weight, bias, eps: as in ``torch.nn.functional.group_norm``.

    Example:
        >>> import torch
        >>> group_norm(torch.tensor([[-2.0, 2.0]]), torch.zeros(1, 2), 1, eps=0.0)[0]
        tensor([[-1.,  1.]])
    """
    check_number("group_norm: num_groups", num_groups, least=1, whole=True)
    if mean.shape[1] % num_groups:
        raise ValueError(f"group_norm: {mean.shape[1]} channels cannot be divided into num_groups={num_groups}")
    if mean.numel() == num_groups:  # torch refuses this too; in a larger batch a group of one entry becomes the bias
        raise ValueError(f"group_norm: expected more than 1 value per group, got shape {tuple(mean.shape)}")
    grouped_mean, grouped_var = (t.unflatten(1, (num_groups, -1)) for t in (mean, var))
    dims = tuple(range(2, grouped_mean.dim()))
    normal, spread = (t.flatten(1, 2) for t in _standardised(grouped_mean, grouped_var, dims, eps))
    return _affine(normal, spread, per_channel(weight, mean), per_channel(bias, mean), mean)


def instance_norm(
    mean: Tensor,
    var: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    r"""Moments of instance normalisation: :func:`layer_norm` over each channel of each example.

    With ``use_input_stats=False`` it uses the running statistics, and the moments are exact.

    Args:
        mean, var: the input's moments, [batch, channels, ...].
        running_mean, running_var, weight, bias, use_input_stats, momentum, eps: as in
            ``torch.nn.functional.instance_norm``.

    Example:
        >>> import torch
        >>> instance_norm(torch.tensor([[[-2.0, 2.0]]]), torch.zeros(1, 1, 2), eps=1e-9)[0]
        tensor([[[-1.,  1.]]])
    """
    if running_var is not None and not use_input_stats:
        return batch_norm(mean, var, running_mean, running_var, weight, bias, False, momentum, eps)
    if math.prod(mean.shape[2:]) == 1:
        raise ValueError(f"instance_norm: expected more than 1 value per channel, got shape {tuple(mean.shape)}")
    if running_var is not None:
        F.instance_norm(mean, running_mean, running_var, None, None, True, momentum, eps)  # updates the running values
    dims = tuple(range(2, mean.dim()))
    normal, spread = _standardised(mean, var, dims, eps)
    return _affine(normal, spread, per_channel(weight, mean), per_channel(bias, mean), mean)


def normalize(mean: Tensor, var: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> tuple[Tensor, Tensor]:
    r"""Moments of a vector divided by its norm, where n² is the expected square of the norm.

    .. math:: E = \mu / n, \qquad V = v / n^2, \qquad n^2 = \max\Big(\sum_i \mu_i^2 + v_i,\ \epsilon^2\Big)

    The direction of a vector near zero is pure noise, of bounded variance. For p other than 2, n is the norm of the
    means.

    Errors against 10⁵ samples as in the head of this module, for p = 2 and results scaled to entries of size 1: over 16
    entries 0.0006, 0.004 and 0.013 in the mean, 9 to 11 % in the standard deviation; over 64 entries 0.0003, 0.0013 and
    0.004, 3 to 5 %.

    Args:
        mean, var: the input's moments.
        p, dim, eps: as in ``torch.nn.functional.normalize``.

    Example:
        >>> import torch
        >>> normalize(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
        (tensor([[0.6000, 0.8000]]), tensor([[0., 0.]]))
        >>> normalize(torch.zeros(1, 2), torch.ones(1, 2))
        (tensor([[0., 0.]]), tensor([[0.5000, 0.5000]]))
    """
    known = widened(mean)
    if p == 2:
        square = (known.square() + var).sum(dim, keepdim=True).clamp(min=max(eps * eps, torch.finfo(var.dtype).tiny))
    else:
        square = known.norm(p, dim, keepdim=True).clamp(min=eps).square()
    return (known * square.rsqrt()).to(mean.dtype), var / square


def _standardised(
    mean: Tensor, var: Tensor, dims: tuple[int, ...], eps: float, centred: bool = True
) -> tuple[Tensor, Tensor]:
    known, spread = widened(mean), var.mean(dims, keepdim=True)
    if centred:
        known = known - known.mean(dims, keepdim=True)
        count = math.prod([mean.shape[d] for d in dims])
        var = (1 - 2 / count) * var + spread / count  # of an entry minus the mean, which includes it
        spread = spread * (1 - 1 / count)
    square = known.square().mean(dims, keepdim=True) + spread + eps
    return known * square.rsqrt(), var / square


def _affine(
    mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, like: Tensor
) -> tuple[Tensor, Tensor]:
    if weight is not None:
        mean, var = mean * weight, var * widened(weight).square()
    return (mean if bias is None else mean + bias).to(like.dtype), var.to(widened(like).dtype)


def _last_dims(name: str, normalized_shape: Sequence[int], mean: Tensor) -> tuple[int, ...]:
    count = len(normalized_shape)
    if count == 0 or tuple(mean.shape[-count:]) != tuple(normalized_shape):
        raise ValueError(
            f"{name}: normalized_shape={list(normalized_shape)} does not fit an input of shape {tuple(mean.shape)}"
        )
    return tuple(range(-count, 0))
