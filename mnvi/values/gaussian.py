"""Independent Gaussians, one per entry, that go wherever a tensor goes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import values_can_be_read
from mnvi.values.base import RandomValue, check_tensors, tree_node

_HALF = (torch.float16, torch.bfloat16)


@tree_node
@dataclass(init=False, repr=False, eq=False)
class Gaussian(RandomValue):
    r"""A tensor of independent Gaussian variables :math:`Z_i \sim \mathcal N(\mu_i, v_i)`.

    It answers torch's own functions: ``torch.relu(x)``, ``nn.BatchNorm2d(8)(x)``, ``x + y``, ``x.flatten(1)`` return
    the ``Gaussian`` with the (approximate) mean and variance of the result. The rules treat different ``Gaussian``
    objects, and all entries of one, as independent. They recognise values that come from one another by elementwise
    functions and rearrangements, as in ``x * torch.sigmoid(x)`` or ``x + x.T``. A sum over copies of one entry, which
    ``expand`` and ``repeat`` make, warns (:class:`mnvi.DependenceWarning`). A function without a rule raises
    :class:`mnvi.NoRuleError` instead of dropping the variance; :func:`mnvi.rule` adds one.

    Operations in place act as on a tensor: ``x[0].add_(1)`` and ``x[0] = 1`` change ``x`` and its other views.

    Args:
        mean: the means :math:`\mu`, floating point.
        var: the variances :math:`v \ge 0`, same shape and device; same dtype, or float32 beside a half-precision mean.

    Attributes:
        shared: under ``mnvi.options(spatial="shared_weights")``, the mean covariance between two different positions of
            a channel, with size 1 in the dimensions of the positions; None means that positions are independent.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.Gaussian(torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([1.0, 1.0, 0.5]))
        >>> y = torch.relu(x) + 1
        >>> y.mean
        tensor([1.0833, 1.3989, 3.0005])
        >>> y.var
        tensor([0.0684, 0.3408, 0.4979])
    """

    mean: Tensor
    var: Tensor
    shared: Tensor | None

    _fields = ("mean", "var", "shared")
    _readable = ".mean and .var"
    __slots__ = ("before", "deviation", "mean", "origin", "picked", "shared", "var")
    __hash__ = object.__hash__

    def __init__(self, mean: Tensor, var: Tensor, **others: Any) -> None:
        if others:
            raise TypeError(
                f"Gaussian takes mean and var, not {', '.join(others)}, so dataclasses.replace cannot copy it. FSDP2 "
                "copies what a sharded part of a network returns; shard the objective as a whole instead: "
                "fully_shard(mnvi.Objective(net, elbo))"
            )
        _check(mean, var)
        self.mean = mean
        self.var = var
        self.shared = None
        self.deviation: Any = None  # standard deviations of this variance, for mnvi.rules.activations
        self.before: Any = None  # what the ReLU that made this value was given, for mnvi.rules.pooling
        self.picked: Any = None  # means at some positions that are at hand, for mnvi.layers.base
        self.origin: Any = None  # where the value comes from, for mnvi.rules.dependence

    @classmethod
    def trusted(cls, mean: Tensor, var: Tensor, shared: Tensor | None = None) -> Gaussian:
        """Make a ``Gaussian`` without checking its values, for results that are right by construction.

        Example:
            >>> import torch, mnvi
            >>> mnvi.Gaussian.trusted(torch.zeros(2), torch.ones(2)).shape
            torch.Size([2])
        """
        out = cls.__new__(cls)
        out.mean = mean
        out.var = var
        out.shared = shared
        out.deviation = None
        out.before = None
        out.picked = None
        out.origin = None
        return out

    def become(self, other: Gaussian) -> Gaussian:
        """Take over the tensors of another value, as in-place operations do; views share them."""
        if other is not self:
            origin = self.origin
            super().become(other)
            self.deviation, self.before, self.picked = other.deviation, other.before, other.picked
            self.origin = other.origin
            if origin is not None:
                origin.written(self)
        return self

    def map(self, function: Callable[[Tensor], Tensor]) -> Gaussian:
        """Apply the same rearrangement to mean and variance.

        Example:
            >>> import torch, mnvi
            >>> mnvi.Gaussian(torch.zeros(2, 3), torch.ones(2, 3)).map(lambda t: t[0]).shape
            torch.Size([3])
        """
        return Gaussian.trusted(function(self.mean), function(self.var))

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Draw :math:`z = \mu + \sqrt v\,\varepsilon`, shape ``[num_samples, *shape]``, differentiably.

        Example:
            >>> import torch, mnvi
            >>> x = mnvi.Gaussian(torch.zeros(3), torch.ones(3))
            >>> x.sample(5, torch.Generator().manual_seed(0)).shape
            torch.Size([5, 3])
        """
        return self.mean + self.std * self._noise(num_samples, generator)

    @property
    def is_cuda(self) -> bool:
        return self.mean.is_cuda

    @property
    def is_nested(self) -> bool:
        return False

    @property
    def layout(self) -> torch.layout:
        return self.mean.layout

    @property
    def T(self) -> Gaussian:
        return self._rules.answer(Tensor.permute, (self, *reversed(range(self.dim()))), {})

    @property
    def mT(self) -> Gaussian:
        return self._rules.answer(Tensor.transpose, (self, -2, -1), {})

    def is_contiguous(self, **kwargs: Any) -> bool:
        return self.mean.is_contiguous(**kwargs) and self.var.is_contiguous(**kwargs)

    def stride(self, *args: Any, **kwargs: Any) -> Any:
        return self.mean.stride(*args, **kwargs)

    def new_full(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.mean.new_full(*args, **kwargs)

    def new_zeros(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.mean.new_zeros(*args, **kwargs)

    def new_ones(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.mean.new_ones(*args, **kwargs)

    def new_empty(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.mean.new_empty(*args, **kwargs)

    def __iter__(self) -> Iterator[Gaussian]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Gaussian:
        return self._rules.answer(operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        self._rules.answer(operator.setitem, (self, index, value), {})

    def __eq__(self, other: object) -> Any:
        return torch.eq(self, other)  # type: ignore[call-overload]

    def __ne__(self, other: object) -> Any:
        return torch.ne(self, other)  # type: ignore[call-overload]

    def __lt__(self, other: Any) -> Any:
        return torch.lt(self, other)  # type: ignore[call-overload]

    def __le__(self, other: Any) -> Any:
        return torch.le(self, other)  # type: ignore[call-overload]

    def __gt__(self, other: Any) -> Any:
        return torch.gt(self, other)  # type: ignore[call-overload]

    def __ge__(self, other: Any) -> Any:
        return torch.ge(self, other)  # type: ignore[call-overload]

    def __bool__(self) -> bool:
        raise TypeError("a Gaussian is neither true nor false; compare x.mean, or write `x is not None`")

    def __repr__(self) -> str:
        return f"Gaussian(mean={self.mean}, var={self.var})"

    def __deepcopy__(self, memo: dict) -> Gaussian:
        return Gaussian.trusted(*(tensor.__deepcopy__(memo) for _, tensor in self._tensors()))


def _check(mean: Tensor, var: Tensor) -> None:
    check_tensors("Gaussian", mean, "var", var)
    if mean.shape != var.shape:
        raise ValueError(
            f"Gaussian: mean has shape {tuple(mean.shape)} and var {tuple(var.shape)}; they must be the same, "
            "use var.expand_as(mean) to repeat one"
        )
    if mean.dtype != var.dtype and not (mean.dtype in _HALF and var.dtype == torch.float32):
        raise TypeError(f"Gaussian: mean is {mean.dtype} and var {var.dtype}; convert one with .to(dtype)")
    if values_can_be_read(var):
        lowest = var.detach().amin() if var.numel() else None
        if lowest is not None and not lowest >= 0:
            problem = "NaN" if lowest.isnan() else f"{lowest.item():g}"
            raise ValueError(f"Gaussian: var has an entry {problem}; variances must be >= 0")
