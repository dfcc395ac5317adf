r"""Moments of smooth activations, read from a table instead of integrated at every call.

The two moments of :math:`f(Z)` are smooth functions of :math:`\mu` and :math:`\sigma^2`. With :math:`u = 1/2`, a length
over which these functions bend, :math:`s^2 = u^2 + \sigma^2`, and :math:`q = 1` for a rectifier (degree 1),
:math:`q = 1/s` for a bounded function (degree 0),

.. math:: E = f(\mu) + \frac{\sigma^2 q}{s}\,T_1, \qquad V = \sigma^2 q^2\,T_2

with :math:`T_1, T_2` bounded and smooth from :math:`\sigma = 0` to :math:`\sigma = \infty`. A table holds them, and the
four derivatives of E and V, over :math:`x = \mathrm{sign}(\mu)\log(1 + |\mu|/u)` and :math:`y = \log(s/u)`. One call of
``grid_sample`` reads it, bilinearly. The table is made at first use from a formula that integrates, the reference:
derivatives by :math:`\mu` are central differences of it, and those by :math:`\sigma^2` follow from the heat equation,
:math:`\partial E/\partial\sigma^2 = \tfrac12 E''` and :math:`\partial V/\partial\sigma^2 = \tfrac12 V'' + E'^2`.

The mean is off by less than :math:`10^{-4}\sigma`, the variance by less than :math:`2\cdot10^{-4}\sigma^2` (where a
bounded function has the range 1: times at most one), and the derivatives by less than :math:`5\cdot10^{-4}` of their
largest values, the errors of the reference included. Beyond :math:`s = 150`, or 2000 for a bounded function, a function
counts as the limit that it has from afar.

Where the slope of f jumps, the moments change over a distance of :math:`\sigma`. There :math:`u = 10^{-3}`, with
one logarithm in x for every kink. The errors are the same from :math:`\sigma = 10^{-3}` on. Below, within a few
:math:`\sigma` of a kink, the variance may be off by half of :math:`\sigma^2`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.moments._torch import is_fused, is_traced, outside_of_traces, taking_forward_derivatives, values_can_be_read
from mnvi.moments.lean import in_memory_order

_UNIT = 0.5  # u
_UNIT_AT_KINKS = 1e-3
_X_STEP, _Y_STEP = 1 / 60, 1 / 44  # between nodes
_X_STEP_AT_KINKS, _Y_STEP_AT_KINKS = 1 / 45, 1 / 36
_WIDEST = {0: 2000.0, 1: 150.0}  # s at the last row, by degree
_FURTHEST = 8.0  # |μ|/s at the first and last column of the last row
_DIFFERENCE = 0.01  # step of the central differences, in units of s
_NO_NOISE = 1e-8  # σ²/u² at the first row, where the moments are as for none
_HALVINGS = 60
_BLOCK = 1 << 16  # elements; what is made from one block stays in the cache
_BATCHES = 8  # grid_sample runs its batch in parallel
_MOMENTS, _DERIVATIVES = slice(0, 2), slice(2, 6)

Moments = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Function = Callable[[Tensor], Tensor]


def tabulated(function: Function, *, degree: int = 1, kinks: tuple[float, ...] = ()) -> Callable[[Moments], Moments]:
    r"""Decorator: answer from a table in eager float32, and by the decorated formula otherwise.

    The formula stays at hand as ``.reference``. It answers in float64, for second derivatives, in forward mode, inside
    ``torch.func``, and while compiling, where it becomes one fused kernel.

    Args:
        function: :math:`f`.
        degree: 1 for a rectifier, zero far below and the identity far above; 0 for a bounded function.
        kinks: where its slope jumps.

    Example:
        >>> import torch
        >>> from mnvi.moments.activations.logistic import silu
        >>> mean, var = torch.zeros(1), torch.ones(1)
        >>> silu(mean, var)[1], silu.reference(mean, var)[1]
        (tensor([0.3131]), tensor([0.3131]))
    """

    def decorate(reference: Moments) -> Moments:
        table = Table(function, reference, degree, kinks)

        @functools.wraps(reference)
        def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
            if not _readable(var):
                return reference(mean, var)
            wide, spread = torch.broadcast_tensors(mean.to(var.dtype), var)
            expectation, variance = _Read.apply(table, wide, spread)
            return expectation.to(mean.dtype), variance

        moments.reference = reference  # type: ignore[attr-defined]
        return moments

    return decorate


def _readable(var: Tensor) -> bool:
    """Whether operations run one by one on float32 values: what traces them does better with a formula."""
    return (
        var.dtype == torch.float32
        and not is_traced()
        and not is_fused()
        and not taking_forward_derivatives()
        and values_can_be_read(var)
    )


class _Read(torch.autograd.Function):
    """Saves only its inputs; the backward pass reads the derivatives."""

    @staticmethod
    def forward(ctx: Any, table: Table, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        ctx.table = table
        ctx.save_for_backward(mean, var)
        expectation, variance = _in_blocks(table.moments, (mean, var), table.channels(var.device))
        return expectation, variance

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_var: Tensor) -> tuple[Tensor | None, ...]:
        mean, var = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: bilinear pieces have no second derivative, the reference has
            with torch.enable_grad():
                outputs = ctx.table.reference(mean, var)
            needed = ctx.needs_input_grad[1:]
            wanted = [tensor for tensor, is_needed in zip((mean, var), needed, strict=True) if is_needed]
            found = torch.autograd.grad(outputs, wanted, (g_mean, g_var), create_graph=True, materialize_grads=True)
            given = iter(found)
            return None, *(next(given) if is_needed else None for is_needed in needed)
        inputs = mean, var, g_mean, g_var
        return None, *_in_blocks(ctx.table.gradients, inputs, ctx.table.channels(var.device))


class Table:
    """The table of one activation; the arguments are those of :func:`tabulated`.

    Example:
        >>> import torch
        >>> table = Table(torch.tanh, lambda mean, var: (torch.tanh(mean), var), degree=0)
        >>> table.channels(torch.device("cpu")).shape  # six quantities, σ, μ
        torch.Size([1, 6, 366, 1247])
    """

    def __init__(self, function: Function, reference: Moments, degree: int, kinks: tuple[float, ...] = ()) -> None:
        self.function, self.reference, self.degree = function, reference, degree
        self._unit = _UNIT_AT_KINKS if kinks else _UNIT
        self._steps = (_X_STEP_AT_KINKS, _Y_STEP_AT_KINKS) if kinks else (_X_STEP, _Y_STEP)
        self._centres = kinks or (0.0,)
        self._widest = _WIDEST[degree]
        self._x_end = len(self._centres) * math.log1p(_FURTHEST * self._widest / self._unit)
        self._y_end = math.log(self._widest / self._unit)
        self._made: dict[torch.device, Tensor] = {}

    def channels(self, device: torch.device) -> Tensor:
        """T₁, T₂, and E', ½E'', V', ∂V/∂σ² in units of s: [1, 6, rows, columns], made once for a device."""
        if device not in self._made:
            with outside_of_traces(), torch.no_grad():
                self._made[device] = self._make().float().to(device)
        return self._made[device]

    def moments(self, channels: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        grid, inverse, shrunk, shrink = self._coordinates(mean, var)
        first, second = self._read(channels[:, _MOMENTS], grid)
        second.masked_fill_(shrunk.isnan(), math.nan)  # NaN stays NaN, though the table has an entry for it
        value = self.function(shrunk)
        if self.degree:
            return value.div_(shrink).addcmul_(first, inverse.mul_(var)), second * var
        share = inverse.square_().mul_(var)
        return value.addcmul_(first, share), second * share

    def gradients(
        self, channels: Tensor, mean: Tensor, var: Tensor, g_mean: Tensor, g_var: Tensor
    ) -> tuple[Tensor, Tensor]:
        grid, inverse, _, _ = self._coordinates(mean, var)
        mean_by_mean, mean_by_var, var_by_mean, var_by_var = self._read(channels[:, _DERIVATIVES], grid)
        if not self.degree:
            g_mean = g_mean * inverse
            g_var = inverse.square().mul_(g_var)
        to_var = (g_mean * mean_by_var).mul_(inverse).addcmul_(g_var, var_by_var)
        to_mean = inverse.mul_(var).mul_(g_var).mul_(var_by_mean).addcmul_(g_mean, mean_by_mean)
        return to_mean, to_var

    def _coordinates(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where to read, 1/s, the mean at the scale of the table, and that scale: 1 except beyond the last row."""
        inverse = (var + self._unit**2).rsqrt_()
        shrink = (inverse * self._widest).clamp_(max=1)
        shrunk = mean * shrink
        grid = mean.new_empty(*mean.shape, 2)
        torch.mul(self._across(shrunk), 1 / self._x_end, out=grid[..., 0])
        y = (inverse * self._unit).log_()
        torch.sub(y.mul_(-2 / self._y_end), 1, out=grid[..., 1])
        return grid, inverse, shrunk, shrink

    def _across(self, mean: Tensor) -> Tensor:
        """x, before it is scaled to the table: the sum of sign(r)·log(1 + |r|/u) over the centres."""
        parts = []
        for centre in self._centres:
            away = mean - centre if centre else mean
            parts.append(away.abs().mul_(1 / self._unit).log1p_().copysign_(away))
        return parts[0] if len(parts) == 1 else torch.add(*parts)

    def _mean_at(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`_across`, by bisection."""
        low, high = (torch.full_like(x, sign * 2 * _FURTHEST * self._widest) for sign in (-1, 1))
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            above = self._across(middle) > x
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return 0.5 * (low + high)

    @staticmethod
    def _read(channels: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        count = len(grid)
        batch = _BATCHES if count % _BATCHES == 0 else 1
        grid = grid.view(batch, 1, count // batch, 2)
        wanted = channels.expand(batch, -1, -1, -1)
        read = F.grid_sample(wanted, grid, mode="bilinear", padding_mode="border", align_corners=True)
        return tuple(read.transpose(0, 1).reshape(-1, count))

    def _make(self) -> Tensor:
        columns, rows = 2 * math.ceil(self._x_end / self._steps[0]) + 1, math.ceil(self._y_end / self._steps[1]) + 1
        x = torch.linspace(-self._x_end, self._x_end, columns, dtype=torch.float64, device="cpu")
        y = torch.linspace(0, self._y_end, rows, dtype=torch.float64, device="cpu")[:, None]
        mean = self._mean_at(x).expand(rows, -1).contiguous()
        var = (self._unit**2 * torch.expm1(2 * y).clamp(min=_NO_NOISE)).expand(-1, columns).contiguous()
        s = (self._unit**2 + var).sqrt()
        step = _DIFFERENCE * s
        (below, low), (here, middle), (above, high) = (self.reference(mean + k * step, var) for k in (-1, 0, 1))
        slope, curvature = (above - below) / (2 * step), (above - 2 * here + below) / step.square()
        tilt, bend = (high - low) / (2 * step), (high - 2 * middle + low) / step.square()
        q = torch.ones_like(s) if self.degree else 1 / s
        unit_free = (
            (here - self.function(mean)) * s / (var * q),
            middle / (var * q.square()),
            slope / q,
            0.5 * curvature * s / q,
            tilt * s / (var * q.square()),
            (0.5 * bend + slope.square()) / q.square(),
        )
        made = _lifted(torch.stack(unit_free))[None]
        made[:, 1].clamp_(min=0)
        return made


def _lifted(values: Tensor) -> Tensor:
    """Nodes moved by half the largest error between them, so that a bilinear surface errs as much above as below."""
    across, along = torch.zeros_like(values), torch.zeros_like(values)
    across[..., 1:-1] = values[..., 2:] - 2 * values[..., 1:-1] + values[..., :-2]
    along[..., 1:-1, :] = values[..., 2:, :] - 2 * values[..., 1:-1, :] + values[..., :-2, :]
    return values - (across + along) / 16


def _in_blocks(function: Callable, inputs: tuple[Tensor, ...], channels: Tensor) -> tuple[Tensor, Tensor]:
    """``function(channels, *inputs)`` on flat blocks of elements, in the order of memory if all inputs have one."""
    first = inputs[0]
    if in_memory_order(first) is None or any(t.stride() != first.stride() for t in inputs):
        inputs = tuple(t.contiguous() for t in inputs)
    results = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
    if not first.numel():
        return results
    size = _BLOCK if first.device.type == "cpu" else first.numel()
    pieces = [_flat(t).split(size) for t in (*results, *inputs)]
    for one, two, *block in zip(*pieces, strict=True):
        for target, value in zip((one, two), function(channels, *block), strict=True):
            target.copy_(value)
    return results


def _flat(tensor: Tensor) -> Tensor:
    flat = in_memory_order(tensor)
    assert flat is not None
    return flat
