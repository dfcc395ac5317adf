"""The largest and smallest entry along dimensions; ``mnvi.options(max_pool=...)`` chooses the approximation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from mnvi.moments.pooling import largest
from mnvi.rules.arithmetic import maximum, minimum, neg
from mnvi.rules.operands import named_dims
from mnvi.rules.options import current
from mnvi.rules.table import RULES, every
from mnvi.values.gaussian import Gaussian


class Extreme(NamedTuple):
    """What ``torch.max(x, dim)`` and ``torch.min(x, dim)`` return."""

    values: Gaussian
    indices: Tensor


def _counted(dim: int, ndim: int) -> int:
    """The dimension counted from the front; as in torch, 0 is valid without dimensions too."""
    count = ndim or 1
    if not -count <= dim < count:
        raise IndexError(
            f"amax, amin: dim={dim} must be from {-count} to {count - 1} for a Gaussian of {ndim} dimensions"
        )
    return dim % count


@RULES.rule(*every("amax"))
def amax(input: Gaussian, dim: int | Sequence[int] = (), keepdim: bool = False, *, out: None = None) -> Gaussian:
    dims = sorted({_counted(d, input.dim()) for d in named_dims(dim, input.dim())})
    if input.dim() == 0:
        return input
    others = [d for d in range(input.dim()) if d not in dims]
    shape = [1 if d in dims else size for d, size in enumerate(input.shape)] if keepdim else None
    rows = input.map(lambda t: t.permute(*others, *dims).flatten(len(others)))
    mean, var, _ = largest(rows.mean, rows.var, -1, current().max_pool == "clark")
    return Gaussian.trusted(mean, var) if shape is None else Gaussian.trusted(mean.view(shape), var.view(shape))


@RULES.rule(*every("amin"))
def amin(input: Gaussian, dim: int | Sequence[int] = (), keepdim: bool = False, *, out: None = None) -> Gaussian:
    return neg(amax(neg(input), dim, keepdim))


@RULES.rule(*every("max"))
def max(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: None = None) -> Any:
    """The largest of all entries; with ``dim`` the largest along it, and where; for two values the larger."""
    if isinstance(dim, Gaussian | Tensor) or other is not None:
        return maximum(input, dim if other is None else other)
    if dim is None:
        return amax(input)
    mean, var, indices = largest(input.mean, input.var, dim, current().max_pool == "clark")
    if keepdim:
        mean, var, indices = (t.unsqueeze(dim) for t in (mean, var, indices))
    return Extreme(Gaussian.trusted(mean, var), indices)


@RULES.rule(*every("min"))
def min(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: None = None) -> Any:
    if isinstance(dim, Gaussian | Tensor) or other is not None:
        return minimum(input, dim if other is None else other)
    if dim is None:
        return amin(input)
    values, indices = max(neg(input), dim, keepdim)
    return Extreme(neg(values), indices)
