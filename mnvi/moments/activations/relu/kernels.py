"""Ways to run the ReLU's formulas: with a closed-form backward pass, and in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from mnvi.moments._torch import is_compiling, is_traced, is_wrapped
from mnvi.moments.activations.relu import formula
from mnvi.moments.differentiation import first_order
from mnvi.moments.lean import in_memory_order
from mnvi.moments.normal import INV_SQRT_2PI, SMALLEST_VARIANCE, SQRT_HALF

_BLOCK = 1 << 16  # elements; a few arrays of this size stay in the cache
_BLOCKED_FROM = 1 << 18
_SMALL_BLOCK = 1 << 15


class ReLU(torch.autograd.Function):
    """Saves E, Φ and φ/σ. The next layer saves E anyway, so the backward pass costs two tensors and no erf.

    In eager mode Φ and φ/σ are outputs with gradients of their own, which derivatives of higher order use.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if blockable(mean, var):
            expectation, variance, cdf, slope = blocked(mean, var, for_backward=True)
            return expectation, variance, cdf, slope
        return formula.moments(mean, var)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        mean, var = inputs
        expectation, _, cdf, slope = output
        ctx.of_first_order = is_traced()
        if ctx.of_first_order:
            ctx.mark_non_differentiable(cdf, slope)
        ctx.set_materialize_grads(False)  # no zeros for the outputs that have no gradient
        ctx.save_for_backward(expectation, cdf, slope)
        ctx.dtypes = mean.dtype, var.dtype

    @staticmethod
    def backward(
        ctx: Any, g_mean: Tensor | None, g_var: Tensor | None, g_cdf: Tensor | None, g_slope: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        expectation, cdf, slope = ctx.saved_tensors
        g_mean = torch.zeros_like(expectation) if g_mean is None else g_mean
        g_var = torch.zeros_like(cdf) if g_var is None else g_var
        tensors = g_mean, g_var, expectation, cdf, slope
        # compiled code may hand over zeros where there is no gradient
        higher = not ctx.of_first_order and (g_cdf is not None or g_slope is not None)
        if not higher and not torch.is_grad_enabled() and blockable(*tensors):
            return _blocked_gradients(*tensors)
        to_mean, to_var = formula.gradients(*tensors)
        if higher:
            more_to_mean, more_to_var = formula.gradients_of_ingredients(g_cdf, g_slope, cdf, slope)
            to_mean, to_var = to_mean + more_to_mean, to_var + more_to_var
        return to_mean.to(ctx.dtypes[0]), to_var.to(ctx.dtypes[1])


class ReLUOfAnyOrder(torch.autograd.Function):
    """For higher derivatives and forward mode: the gradients are differentiable functions of the inputs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        expectation, variance, _, _ = formula.moments(mean, var)
        return expectation, variance

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_var: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = ctx.saved_tensors
        to_mean, to_var = formula.gradients(g_mean, g_var, *_ingredients(mean, var))
        return to_mean.to(mean.dtype), to_var.to(var.dtype)

    @staticmethod
    def jvp(ctx: Any, t_mean: Tensor, t_var: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = ctx.saved_tensors
        expectation, cdf, slope = _ingredients(mean, var)
        to_expectation = cdf * t_mean + 0.5 * slope * t_var
        to_variance = 2 * expectation * (1 - cdf) * t_mean + (cdf - expectation * slope) * t_var
        return to_expectation.to(mean.dtype), to_variance.to(var.dtype)


def _ingredients(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E, Φ(μ/σ) and φ(μ/σ)/σ, differentiable to any order."""
    expectation: Tensor = ReLUOfAnyOrder.apply(mean, var)[0]
    noisy = var > SMALLEST_VARIANCE
    sigma = torch.where(noisy, var, 1.0).sqrt()  # without noise Φ is a step and every slope is 0
    ratio = mean.to(var.dtype) / sigma
    cdf = torch.where(noisy, torch.special.ndtr(ratio), 0.5 + 0.5 * ratio.sign())
    density = INV_SQRT_2PI * torch.exp(-0.5 * ratio * ratio) / sigma
    return expectation, cdf, torch.where(noisy, density, 0.0)


class ReLUOfReplicas(torch.autograd.Function):
    """Under ``torch.func``: one operation forwards and one backwards, floor included. A recorded step then holds two
    entries instead of forty, and each runs in the cache."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, var: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.mnvi.relu_moments(mean, var, floor)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        _, var, ctx.floor = inputs
        expectation, _, cdf, slope = output
        ctx.mark_non_differentiable(cdf, slope)
        ctx.save_for_backward(expectation, cdf, slope, var)

    @staticmethod
    @first_order
    def backward(ctx: Any, g_mean: Tensor, g_var: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:
        expectation, cdf, slope, var = ctx.saved_tensors
        to_mean, to_var = torch.ops.mnvi.relu_gradients(g_mean, g_var, expectation, cdf, slope, var, ctx.floor)
        return to_mean, to_var, None


torch.library.define("mnvi::relu_moments", "(Tensor mean, Tensor var, float floor) -> (Tensor, Tensor, Tensor, Tensor)")
torch.library.define(
    "mnvi::relu_gradients",
    "(Tensor g_mean, Tensor g_var, Tensor expectation, Tensor cdf, Tensor slope, Tensor var, float floor)"
    " -> (Tensor, Tensor)",
)


@torch.library.impl("mnvi::relu_moments", "CPU")
def _relu_moments(mean: Tensor, var: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E, V, Φ and φ/σ of :func:`relu`, as one operation."""
    mean, var = mean.contiguous(), var.contiguous()
    if mean.dtype != var.dtype:
        return formula.moments(mean, var.clamp(min=floor))
    expectation, variance, cdf, slope = blocked(mean, var, for_backward=True, floor=floor, block=_SMALL_BLOCK)
    return expectation, variance, cdf, slope


@torch.library.impl("mnvi::relu_gradients", "CPU")
def _relu_gradients(
    g_mean: Tensor, g_var: Tensor, expectation: Tensor, cdf: Tensor, slope: Tensor, var: Tensor, floor: float
) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`relu` from the results of ``mnvi::relu_moments``, as one operation."""
    tensors = [t.contiguous() for t in (g_mean, g_var, expectation, cdf, slope, var)]
    if any(t.dtype != var.dtype for t in tensors):
        to_mean, to_var = formula.gradients(*tensors[:5])
        return to_mean.to(expectation.dtype), torch.where(var >= floor, to_var, 0).to(var.dtype)
    return _blocked_gradients(*tensors, floor=floor, block=_SMALL_BLOCK)


@torch.library.register_fake("mnvi::relu_moments")
def _(mean: Tensor, var: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(mean), torch.empty_like(var), torch.empty_like(var), torch.empty_like(var)


@torch.library.register_fake("mnvi::relu_gradients")
def _(g_mean: Tensor, g_var: Tensor, expectation: Tensor, cdf: Tensor, slope: Tensor, var: Tensor, floor: float) -> Any:
    return torch.empty_like(expectation), torch.empty_like(var)


def _batched(operation: Any) -> Callable:
    """The vmap rule of an elementwise operation: batch dimensions move to the front, or are added by expansion."""

    def rule(info: Any, in_dims: tuple, *args: Any) -> tuple[Any, Any]:
        moved = [
            arg
            if not isinstance(arg, Tensor)
            else arg.expand(info.batch_size, *arg.shape)
            if dim is None
            else arg.movedim(dim, 0)
            for arg, dim in zip(args, in_dims, strict=True)
        ]
        outputs = operation(*moved)
        return outputs, (0,) * len(outputs)

    return rule


torch.library.register_vmap("mnvi::relu_moments", _batched(torch.ops.mnvi.relu_moments))
torch.library.register_vmap("mnvi::relu_gradients", _batched(torch.ops.mnvi.relu_gradients))


def blockable(first: Tensor, *others: Tensor) -> bool:
    """Whether these are large plain CPU tensors of one dtype and one dense memory layout, and nothing compiles."""
    return (
        not is_compiling()
        and first.device.type == "cpu"
        and first.numel() >= _BLOCKED_FROM
        and not any(is_wrapped(t) for t in (first, *others))
        and in_memory_order(first) is not None
        and all(t.dtype == first.dtype and t.stride() == first.stride() and type(t) is Tensor for t in others)
    )


def _blocks(tensors: Sequence[Tensor], scratch: int, block: int = _BLOCK) -> Iterator[tuple[Tensor, ...]]:
    """Corresponding blocks of all tensors, plus scratch blocks; work on them stays in the cache."""
    flat = [cast(Tensor, in_memory_order(t)) for t in tensors]
    spare = [tensors[0].new_empty(block) for _ in range(scratch)]
    for pieces in zip(*(t.split(block) for t in flat), strict=True):
        yield *pieces, *(t[: len(pieces[0])] for t in spare)


def blocked(mean: Tensor, var: Tensor, for_backward: bool, floor: float = 0.0, block: int = _BLOCK) -> list[Tensor]:
    """:func:`formula.moments` without large intermediate arrays; Φ and φ/σ only for a backward pass."""
    outputs = [torch.empty_like(mean) for _ in range(4 if for_backward else 2)]
    far = formula.far(mean.dtype)
    for m, v, e, s, *rest in _blocks([mean, var, *outputs], 7 if floor else 6, block):
        size, tail, density, cdf, sigma, side = rest[-6:]
        if floor:
            v = torch.clamp(v, min=floor, out=rest[-7])
        torch.clamp(v, min=SMALLEST_VARIANCE, out=sigma).sqrt_()
        torch.div(m, sigma, out=size).abs_().clamp_(max=far)
        torch.mul(size, SQRT_HALF, out=tail)
        torch.mul(tail, tail, out=density).neg_().exp_().mul_(INV_SQRT_2PI)
        tail.erfc_().mul_(0.5)
        torch.ge(m, 0, out=side)
        torch.lerp(tail, 1 - tail, side, out=cdf)  # as torch.where, to the last bit, but without branches
        torch.addcmul(density, size, tail, value=-1, out=tail).clamp_(min=0)  # the excess t
        torch.clamp(m, min=0, out=e).addcmul_(sigma, tail)
        size.add_(tail).mul_(tail)
        torch.sub(cdf, size, out=s).clamp_(min=0).mul_(v)
        if for_backward:
            kept_cdf, slope = rest[:2]
            kept_cdf.copy_(cdf)
            torch.div(density, sigma, out=slope).masked_fill_(v <= SMALLEST_VARIANCE, 0)
    return outputs


def _blocked_gradients(
    g_mean: Tensor,
    g_var: Tensor,
    expectation: Tensor,
    cdf: Tensor,
    slope: Tensor,
    *bounded: Tensor,
    floor: float = 0.0,
    block: int = _BLOCK,
) -> tuple[Tensor, Tensor]:
    """:func:`formula.gradients` without large intermediate arrays; variances below the floor get no gradient."""
    to_mean, to_var = torch.empty_like(expectation), torch.empty_like(expectation)
    tensors = [g_mean, g_var, expectation, cdf, slope, to_mean, to_var]
    for gm, gv, e, c, s, m, v, *given, through, above in _blocks([*tensors, *bounded], 2, block):
        torch.mul(gv, e, out=through)
        torch.sub(1, c, out=above)
        torch.mul(gm, c, out=m).addcmul_(through, above, value=2)
        torch.add(through.neg_(), gm, alpha=0.5, out=through)
        torch.mul(gv, c, out=v).addcmul_(s, through)
        for var in given:
            v.mul_(torch.ge(var, floor, out=above))
    return to_mean, to_var
