r"""A value and its own sum or mean, as in ``x - x.mean(-1, keepdim=True)``.

A mean mixes entries, so a chain of origins ends there, and the rules would take it for independent of what it was made
of. In a sum or difference the covariance is known, :math:`C[x_i, \bar x] = v_i / n`, and :func:`with_own_mean` adds it.

Products and quotients with an own mean keep the independent rule, as in a norm that is written by hand. Their error is
of the order 1/n; docs/trust.md has its measured size.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnvi.moments.positions import over_positions
from mnvi.rules.dependence_warning import warn_about_operands
from mnvi.rules.entries import some_entries
from mnvi.rules.recognition import slope_and_offset
from mnvi.rules.steps import Known, Path
from mnvi.rules.sums import reduced_dims
from mnvi.rules.table import every
from mnvi.values.gaussian import Gaussian
from mnvi.values.origin import Origin, nearest, origin_of

_SUMS, _MEANS = every("sum"), every("mean")
_SIGNS = {"add": 1, "sub": -1, "subtract": -1, "rsub": -1}


class Average(NamedTuple):
    """How a value follows from another by a sum or mean."""

    source: Origin
    dims: tuple[int, ...]  # counted from the end
    weight: float  # of each entry

    @property
    def kept(self) -> torch.Size:
        """The shape of the result with its dimensions kept."""
        shape = self.source.shape
        return torch.Size([1 if d - len(shape) in self.dims else size for d, size in enumerate(shape)])


def note_average(result: Any, operand: Gaussian, function: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    """Note that a value is the sum or mean of another one.

    Args:
        result: the sum or mean.
        operand: what it was made of.
        function: what made it; functions that are no sums are left alone.
        args, kwargs: of the call.
    """
    if (function not in _SUMS and function not in _MEANS) or not operand.dim():
        return
    dims = tuple([d if d < 0 else d - operand.dim() for d in reduced_dims(args, kwargs, operand.dim())])
    count = prod([operand.shape[d] for d in dims])
    if not count:
        return
    link = Origin(result.shape)
    link.average = Average(origin_of(operand), dims, 1.0 if function in _SUMS else 1.0 / count)
    link.belongs_to(result)


def with_own_mean(result: Any, known: Known, args: tuple, kwargs: dict[str, Any]) -> Any:
    r"""The sum or difference of a value and its own mean, with the covariance that the rule left out.

    .. math:: V[a x_i + b \bar x] = a^2 v_i + b^2 V[\bar x] + 2ab\, v_i / n

    Args:
        result: what the rule for independent operands gives.
        known: the function; only sums and differences change.
        args, kwargs: of the call.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.Gaussian(torch.zeros(1, 4), torch.ones(1, 4))
        >>> (x - torch.mean(x, -1, keepdim=True)).var
        tensor([[0.7500, 0.7500, 0.7500, 0.7500]])
    """
    args = (*args, *(kwargs[name] for name in ("input", "other") if name in kwargs))
    if known.plain not in _SIGNS or len(args) != 2 or not all([isinstance(value, Gaussian) for value in args]):
        return result
    for value, average in (args, args[::-1]):
        if value.origin is None or average.origin is None:
            return result
        made = average.origin.root.average
        if made is not None and made.source.family is value.origin.family and made.source.is_current:
            alpha = kwargs.get("alpha", 1)
            factor = 2 * _SIGNS[known.plain] * alpha
            scaled = args[0] if known.plain == "rsub" else args[1]  # the operand that alpha multiplies
            corrected = _corrected(result, value, average, made, factor, alpha if value is scaled else 1)
            if corrected is None and _shares_entries(value.origin, made.source):
                warn_about_operands(known.plain)
            return result if corrected is None else corrected
    return result


def _corrected(
    result: Gaussian, value: Gaussian, average: Gaussian, made: Average, factor: float, scale: float
) -> Gaussian | None:
    """The result with its covariance; None if the operands are not multiples of one value and of its mean.

    Args:
        scale: the factor of the value in the result, without its sign.
    """
    source, top = nearest(value.origin, made.source), average.origin.root
    own, before, after = paths = (
        Path(value.origin.steps_from(source)),
        Path(made.source.steps_from(source)),
        Path(average.origin.steps_from(top)),
    )
    slopes = [_slope(path) for path in paths]
    if None in slopes or slopes[0] == 0 or any([step.copies for step in before.steps]):
        return None
    covariance = made.weight * slopes[1] * slopes[2] / slopes[0] * _own_variance(value, made)  # type: ignore[operator]
    if any([path.moves for path in paths]) or top.shape != made.kept:
        together = _in_its_own_mean(source.shape, made, top.shape, own, before, after)
        covariance = torch.where(together.to(covariance.device), covariance, 0)
    out = Gaussian.trusted(result.mean, (result.var + factor * covariance).clamp(min=0))
    if value.shared is not None and _positions(value.shared, made.dims):
        # Only the mean is common to all positions, so a variance exceeds a covariance by what it was before, scaled.
        apart = over_positions(value.var, value.shared) - value.shared
        out.shared = over_positions(out.var, value.shared) - scale**2 * apart
    return out


def _slope(path: Path) -> float | None:
    """The slope of an affine function with the same numbers for all entries; None for other functions."""
    line = None if path.has_tensors or not path.is_affine else slope_and_offset(path)
    return None if line is None else line[0]


def _own_variance(value: Gaussian, made: Average) -> Tensor:
    """The covariance of an entry and the sum over its fellows, which share weights if they are positions."""
    if value.shared is None or not _positions(value.shared, made.dims):
        return value.var
    others = prod([made.source.shape[d] for d in made.dims]) - 1
    return value.var + others * value.shared


def _positions(shared: Tensor, dims: tuple[int, ...]) -> bool:
    return all([-d <= shared.dim() and shared.shape[d] == 1 for d in dims])


def _shares_entries(a: Origin, b: Origin) -> bool:
    source = nearest(a, b)
    return some_entries(source.shape, [Path(link.steps_from(source)) for link in (a, b)]) is not False


def _in_its_own_mean(shape: torch.Size, made: Average, top: torch.Size, own: Path, before: Path, after: Path) -> Tensor:
    """Where an entry meets the mean over itself and others, not a mean over others alone."""
    groups = torch.arange(made.kept.numel(), device="cpu").view(made.kept)
    numbers = torch.arange(shape.numel(), device="cpu").view(shape)
    group_of = torch.full((shape.numel(),), -1, device="cpu")
    taken = before.indices(numbers).cpu().flatten()
    group_of = group_of.scatter(0, taken, groups.expand(made.source.shape).flatten())
    return group_of[own.indices(numbers).cpu()] == after.indices(groups.view(top)).cpu()
