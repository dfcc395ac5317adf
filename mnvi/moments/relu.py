r"""ReLU: exact moments, stable for every mean and variance, with a closed-form backward pass.

With :math:`d = \mu/\sigma`, :math:`a = |d|`, :math:`q = \Phi(-a)` and :math:`t = \varphi(a) - a\,q` (the mean of a
standard Gaussian above ``a``, less ``a``):

.. math:: E = \max(\mu, 0) + \sigma t, \qquad V = \sigma^2\,(\Phi(d) - t\,(t + a)).

No term is a difference of large numbers for ``d >= -1``; for smaller ``d`` the relative error grows like
:math:`d^2 \epsilon` while the values themselves vanish like :math:`\varphi(d)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_SQRT_HALF = 0.7071067811865476
_INV_SQRT_2PI = 0.3989422804014327
_SMALLEST_VARIANCE = 1e-30  # keeps μ/σ finite in float32 without being seen in any result
_BLOCK = 1 << 16  # elements; a few arrays of this size stay in the cache
_BLOCKED_FROM = 1 << 18


def relu(mean: Tensor, var: Tensor, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    r"""Moments of :math:`\max(Z, 0)`; exact for Gaussian ``Z``.

    Args:
        mean: :math:`\mu`.
        var: :math:`\sigma^2`.
        floor: lower bound put on ``var``.

    Example:
        >>> import torch
        >>> relu(torch.tensor([0.0]), torch.tensor([1.0]))
        (tensor([0.3989]), tensor([0.3408]))
    """
    if floor:
        var = var.clamp(min=floor)
    if not torch.compiler.is_compiling() and not _needs_gradient(mean, var) and _blockable(mean, var):
        expectation, variance = _blocked(mean, var, for_backward=False)
        return expectation, variance
    expectation, variance, _, _ = _ReLU.apply(mean, var)
    return expectation, variance


class _ReLU(torch.autograd.Function):
    """Saves E, Φ and φ/σ: E is kept by the next layer anyway, so the backward pass costs two tensors and no erf."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if not torch.compiler.is_compiling() and _blockable(mean, var):
            expectation, variance, cdf, slope = _blocked(mean, var, for_backward=True)
            return expectation, variance, cdf, slope
        return _formula(mean, var)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        mean, var = inputs
        expectation, _, cdf, density = output
        ctx.mark_non_differentiable(cdf, density)
        ctx.save_for_backward(expectation, cdf, density)
        ctx.dtypes = mean.dtype, var.dtype

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_mean: Tensor, g_var: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        # ∂E/∂μ = Φ, ∂E/∂v = φ/2σ, ∂V/∂μ = 2E(1−Φ), ∂V/∂v = Φ − Eφ/σ
        expectation, cdf, density = ctx.saved_tensors
        through = g_var * expectation
        to_mean = g_mean * cdf + 2 * through * (1 - cdf)
        to_var = g_var * cdf + density * (0.5 * g_mean - through)
        return to_mean.to(ctx.dtypes[0]), to_var.to(ctx.dtypes[1])


def _formula(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E, V, Φ(d) and φ(d)/σ."""
    wide = mean.to(var.dtype)
    bounded = var.clamp(min=_SMALLEST_VARIANCE)
    sigma = bounded.sqrt()
    ratio = wide / sigma
    size = ratio.abs()
    tail = 0.5 * torch.erfc(size * _SQRT_HALF)
    density = _INV_SQRT_2PI * torch.exp(-0.5 * ratio * ratio)
    excess = (density - size * tail).clamp(min=0)
    cdf = torch.where(ratio >= 0, 1 - tail, tail)
    expectation = wide.clamp(min=0) + sigma * excess
    variance = var * (cdf - excess * (excess + size)).clamp(min=0)
    slope = torch.where(var > _SMALLEST_VARIANCE, density / sigma, 0.0)  # no gradient where there is no noise
    return expectation.to(mean.dtype), variance, cdf, slope


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _blockable(mean: Tensor, var: Tensor) -> bool:
    """Large plain CPU tensors of one dtype and one dense memory layout."""
    return (
        mean.device.type == "cpu"
        and mean.numel() >= _BLOCKED_FROM
        and mean.dtype == var.dtype
        and type(mean) is Tensor
        and type(var) is Tensor
        and not torch._C._functorch.is_functorch_wrapped_tensor(mean)
        and not torch._C._functorch.is_functorch_wrapped_tensor(var)
        and _in_memory_order(mean) is not None
        and mean.stride() == var.stride()
    )


def _in_memory_order(tensor: Tensor) -> Tensor | None:
    """A flat view of a dense tensor, or None where there is none."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1).view(-1)
    return None


def _blocked(mean: Tensor, var: Tensor, for_backward: bool) -> list[Tensor]:
    """:func:`_formula`, block by block: intermediate arrays stay in the cache instead of going through memory."""
    outputs = [torch.empty_like(mean) for _ in range(4 if for_backward else 2)]
    flat = [_in_memory_order(t) for t in (mean, var, *outputs)]
    size, tail, density, cdf = (mean.new_empty(_BLOCK) for _ in range(4))
    sigma, below = mean.new_empty(_BLOCK), torch.empty(_BLOCK, dtype=torch.bool)
    for pieces in zip(*(t.split(_BLOCK) for t in flat if t is not None), strict=True):
        m, v, e, s = pieces[:4]
        n = len(m)
        if n < _BLOCK:
            size, tail, density, cdf, sigma, below = (t[:n] for t in (size, tail, density, cdf, sigma, below))
        torch.clamp(v, min=_SMALLEST_VARIANCE, out=sigma).sqrt_()
        torch.div(m, sigma, out=size)
        torch.lt(size, 0, out=below)
        size.abs_()
        torch.mul(size, _SQRT_HALF, out=tail)
        torch.mul(tail, tail, out=density).neg_().exp_().mul_(_INV_SQRT_2PI)
        tail.erfc_().mul_(0.5)
        torch.sub(1, tail, out=cdf)
        torch.where(below, tail, cdf, out=cdf)
        torch.addcmul(density, size, tail, value=-1, out=tail).clamp_(min=0)  # the excess t
        torch.clamp(m, min=0, out=e).addcmul_(sigma, tail)
        size.add_(tail).mul_(tail)
        torch.sub(cdf, size, out=s).clamp_(min=0).mul_(v)
        if for_backward:
            pieces[4].copy_(cdf)
            torch.div(density, sigma, out=pieces[5]).masked_fill_(torch.le(v, _SMALLEST_VARIANCE, out=below), 0)
    return outputs
