r"""Norms, distances, variances and standard deviations over many entries.

A sum of squares :math:`S` has a mean m and a variance that are exact. Its root is that of the Gamma variable with the
same two moments: exact where S is a sum of squares of normals with one variance and mean zero (the chi distribution),
and right to leading order for large means. With :math:`q = V[S]/m^2 \le 2` and :math:`k = 1/q`,

.. math:: E[\sqrt S] = \sqrt{m\,(1 - h)}, \qquad V[\sqrt S] = m\,h, \qquad
          h(q) = 1 - \frac1k\Bigl(\frac{\Gamma(k + \frac12)}{\Gamma(k)}\Bigr)^2.

Errors against 10⁵ samples, over 2, 4, 16 and 64 entries with means drawn from a standard normal and variances uniform
around 0.01, 0.1 and 1: standard deviations of the 2-norm are off by at most 6, 9, 1.4 and 0.8 %, of the standard
deviation of the entries by 7, 6, 1.3 and 0.7 %, of the 3-norm by 23, 16, 5 and 0.8 %. Means of the first two are off by
at most 0.04 of a standard deviation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnvi.moments import positive
from mnvi.moments.activations import piecewise, transcendental
from mnvi.moments.checking import check_number
from mnvi.moments.pooling import largest
from mnvi.moments.precision import widened
from mnvi.moments.quadrature import gauss_hermite, quadrature_moments

_NODES = gauss_hermite(20)
# h(q)/q for 0 ≤ q ≤ 2 as a polynomial of q - 1: Chebyshev interpolation, relative error 3e-7.
_LOST = (
    4.55204666479e-05, -9.39663392455e-05, 8.90514327661e-06, 2.74061621123e-04, -9.24695364159e-04,
    1.65797193473e-03, 2.1135268199e-03, -3.59930009879e-02, 2.14601836603e-01,
)  # fmt: skip


def root(total: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    r"""Moments of the root of a sum of squares with mean m and variance :math:`q m^2`, as in the head of this module.

    Args:
        total: m, at least 0.
        ratio: q, from 0 to 2.

    Example:
        >>> import torch
        >>> root(torch.ones(1), torch.full((1,), 2.0))  # |Z| of a standard normal: √(2/π) and 1 - 2/π
        (tensor([0.7979]), tensor([0.3634]))
    """
    ratio = ratio.clamp(max=2)
    lost = torch.full_like(ratio, _LOST[0])
    for coefficient in _LOST[1:]:
        lost = lost * (ratio - 1) + coefficient
    lost = ratio * lost
    nonzero = total > 0
    value = torch.where(nonzero, torch.where(nonzero, total, 1.0) * (1 - lost), 0.0)
    return torch.where(nonzero, torch.where(nonzero, value, 1.0).sqrt(), 0.0), total * lost


def norm(
    mean: Tensor, var: Tensor, p: float = 2.0, dims: tuple[int, ...] = (-1,), keepdim: bool = False, clark: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`(\sum_i |Z_i|^p)^{1/p}` for :math:`p \ge 1`.

    p = 1 is exact, p = 2 uses :func:`root`, p = ∞ is the largest absolute value. Other p take the moments of
    :math:`|Z_i|^p`, exact for even p and by quadrature otherwise, and the root of :func:`mnvi.moments.positive.power`.
    A single entry has the exact moments of its absolute value, whatever p.

    Args:
        mean, var: the input's moments.
        p: the order, at least 1.
        dims: the dimensions to reduce.
        keepdim: keep them with size 1.
        clark: for p = ∞, match the moments of the maximum pair by pair.

    Example:
        >>> import torch
        >>> norm(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
        (tensor([5.]), tensor([0.]))
    """
    if p != math.inf:
        check_number("norm: p", p, least=1, because="p = 0 counts entries: use x.mean for it")
    wide = widened(mean)
    if math.prod([mean.shape[d] for d in dims]) == 1 or p == 1 or math.isinf(p):
        expectation, variance = piecewise.kink(wide, var, above=1.0, below=-1.0)
        expectation, variance = _reduced(expectation, variance, dims, math.isinf(p), clark)
    elif p == 2:
        expectation, variance = root(*_sum_of_squares(wide, var, dims))
    else:
        total, spread = (t.sum(dims, keepdim=True) for t in _absolute_power(wide, var, p))
        expectation, variance = positive.power(total, spread, 1 / p)
    if not keepdim:
        shape = [size for d, size in enumerate(mean.shape) if d - mean.dim() not in dims and d not in dims]
        expectation, variance = expectation.reshape(shape), variance.reshape(shape)
    return expectation.to(mean.dtype), variance


def variance(mean: Tensor, var: Tensor, dims: tuple[int, ...], correction: float = 1.0) -> tuple[Tensor, Tensor]:
    r"""Moments of the variance of n entries, :math:`S = \frac1{n-c}\sum_i (Z_i - \bar Z)^2`, dimensions kept; exact.

    .. math:: E = \frac1{n-c}\sum_i (\mu_i - \bar\mu)^2 + \tfrac{n-1}n v_i, \qquad
              V = \frac1{(n-c)^2}\Bigl[2\bigl(1 - \tfrac2n\bigr)\sum_i v_i^2 + \frac2{n^2}\bigl(\sum_i v_i\bigr)^2
              + 4\sum_i v_i(\mu_i - \bar\mu)^2\Bigr]

    Args:
        mean, var: the input's moments.
        dims: the dimensions to reduce.
        correction: c, 1 for the unbiased estimate.

    Example:
        >>> import torch
        >>> variance(torch.zeros(3), torch.ones(3), (0,))  # χ² with two degrees of freedom, halved
        (tensor([1.]), tensor([1.]))
    """
    average, ratio = _spread(mean, var, dims, correction)
    return average.to(mean.dtype), ratio * average.square()


def deviation(mean: Tensor, var: Tensor, dims: tuple[int, ...], correction: float = 1.0) -> tuple[Tensor, Tensor]:
    r"""Moments of the standard deviation of the entries, dimensions kept: :func:`root` of :func:`variance`.

    Example:
        >>> import torch
        >>> deviation(torch.tensor([-1.0, 1.0]), torch.zeros(2), (0,), correction=0)
        (tensor([1.]), tensor([0.]))
    """
    expectation, spread = root(*_spread(mean, var, dims, correction))
    return expectation.to(mean.dtype), spread


def cosine_similarity(
    mean_a: Tensor, var_a: Tensor, mean_b: Tensor, var_b: Tensor, dim: int = 1, eps: float = 1e-8
) -> tuple[Tensor, Tensor]:
    r"""Moments of the cosine of the angle between independent vectors A and B.

    With the expected squares of the norms, :math:`a^2 = \sum_i \mu_{ai}^2 + v_{ai}`, and :math:`b^2` alike,

    .. math::
        E = \sum_i \frac{\mu_{ai}\mu_{bi}}{ab}, \qquad
        V = \sum_i \frac{v_{ai}}{a^2}\Bigl(\frac{\mu_{bi}}b - E\frac{\mu_{ai}}a\Bigr)^2
          + \frac{v_{bi}}{b^2}\Bigl(\frac{\mu_{ai}}a - E\frac{\mu_{bi}}b\Bigr)^2 + \frac{v_{ai}v_{bi}}{a^2b^2}.

    The brackets leave out noise along a vector, which does not turn it. The cosine of pure noise over n entries has the
    variance 1/n, which is exact.

    Errors against 10⁵ samples as in the head of this module, over 4, 16 and 64 entries: standard deviations are off by
    at most 29, 2.5 and 0.6 %, means by 0.15, 0.04 and 0.01 of a standard deviation.

    Args:
        mean_a, var_a, mean_b, var_b: the moments; shapes broadcast.
        dim, eps: as in ``torch.cosine_similarity``.

    Example:
        >>> import torch
        >>> one, zero = torch.ones(1, 2), torch.zeros(1, 2)
        >>> cosine_similarity(one, zero, torch.tensor([[1.0, 0.0]]), zero)
        (tensor([0.7071]), tensor([0.]))
    """
    unit_a, share_a = _direction(mean_a, var_a, dim, eps)
    unit_b, share_b = _direction(mean_b, var_b, dim, eps)
    cosine = (unit_a * unit_b).sum(dim, keepdim=True)
    turned = share_a * (unit_b - cosine * unit_a).square() + share_b * (unit_a - cosine * unit_b).square()
    spread = (turned + share_a * share_b).sum(dim)
    return cosine.squeeze(dim).to(torch.promote_types(mean_a.dtype, mean_b.dtype)), spread


def _sum_of_squares(mean: Tensor, var: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """m and q of Σ Z², dimensions kept. Shares of the sum, not squares of squares, so that nothing leaves float32."""
    known = mean.square()
    total = (known + var).sum(dims, keepdim=True)
    whole = torch.where(total > 0, total, 1.0)
    return total, ((2 * var + 4 * known) / whole * (var / whole)).sum(dims, keepdim=True)


def _spread(mean: Tensor, var: Tensor, dims: tuple[int, ...], correction: float) -> tuple[Tensor, Tensor]:
    """m and q of the variance of the entries, dimensions kept."""
    count = math.prod([mean.shape[d] for d in dims])
    if count <= correction:
        raise ValueError(
            f"var, std: {count} entries with correction={correction:g} leave nothing to divide by; expected more than "
            f"{correction:g} along dim, or correction=0"
        )
    known = widened(mean)
    known = (known - known.mean(dims, keepdim=True)).square()
    total = (known + (1 - 1 / count) * var).sum(dims, keepdim=True)
    whole = torch.where(total > 0, total, 1.0)
    share = var / whole
    noise = (1 - 2 / count) * share.square().sum(dims, keepdim=True) + share.mean(dims, keepdim=True).square()
    return total / (count - correction), 2 * noise + 4 * (share * (known / whole)).sum(dims, keepdim=True)


def _reduced(mean: Tensor, var: Tensor, dims: tuple[int, ...], maximum: bool, clark: bool) -> tuple[Tensor, Tensor]:
    """Sum or largest entry over the dimensions, which stay."""
    if not maximum:
        return mean.sum(dims, keepdim=True), var.sum(dims, keepdim=True)
    for d in dims:
        mean, var = (t.unsqueeze(d) for t in largest(mean, var, d, clark)[:2])
    return mean, var


def _absolute_power(mean: Tensor, var: Tensor, p: float) -> tuple[Tensor, Tensor]:
    if p % 2 == 0:
        return transcendental.power(mean, var, exponent=int(p))
    return quadrature_moments(lambda z: z.abs().pow(p), mean, var, _NODES)


def _direction(mean: Tensor, var: Tensor, dim: int, eps: float) -> tuple[Tensor, Tensor]:
    """A vector's means over its expected norm, and its variances over the square of that."""
    known = widened(mean)
    length = (known.square() + var).sum(dim, keepdim=True).clamp(min=max(eps * eps, torch.finfo(var.dtype).tiny))
    return known * length.rsqrt(), var / length
