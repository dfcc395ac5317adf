"""The value: independent Gaussians, one per entry, that go wherever a tensor goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mnvi.registry import RuleTable

RULES = RuleTable("Gaussian", "mnvi.rule")
_HALF = (torch.float16, torch.bfloat16)


@dataclass(init=False, repr=False, eq=False)  # as one, DistributedDataParallel finds the tensors in it
class Gaussian:
    r"""A tensor of independent Gaussian variables :math:`Z_i \sim \mathcal N(\mu_i, v_i)`.

    It answers torch's own functions: ``torch.relu(x)``, ``nn.BatchNorm2d(8)(x)``, ``x + y``, ``x.flatten(1)`` return
    the ``Gaussian`` with the (approximate) mean and variance of the result. Two different ``Gaussian`` objects are
    taken to be independent; an object combined with itself (``x + x``, ``x * x``) is recognised. A function without a
    rule raises :class:`mnvi.NoRuleError` instead of dropping the variance; :func:`mnvi.rule` adds one. In-place
    operations change the object they are called on, not what it was taken from: ``x[0].add_(1)`` leaves ``x`` alone.

    Args:
        mean: the means :math:`\mu`, floating point.
        var: the variances :math:`v \ge 0`, same shape and device; same dtype, or float32 beside a half-precision mean.

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

    __slots__ = ("__weakref__", "mean", "var")
    __hash__ = object.__hash__

    def __init__(self, mean: Tensor, var: Tensor) -> None:
        _check(mean, var)
        self.mean = mean
        self.var = var

    @classmethod
    def trusted(cls, mean: Tensor, var: Tensor) -> Gaussian:
        """A ``Gaussian`` without looking at its values: for results that are right by construction.

        Example:
            >>> import torch, mnvi
            >>> mnvi.Gaussian.trusted(torch.zeros(2), torch.ones(2)).shape
            torch.Size([2])
        """
        out = cls.__new__(cls)
        out.mean = mean
        out.var = var
        return out

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: tuple[type, ...], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return RULES.answer(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        """Any method of a tensor, answered by the rule for ``torch.Tensor.<name>``."""
        method = None if name.startswith("__") else getattr(Tensor, name, None)
        if not callable(method):
            raise AttributeError(f"'Gaussian' has no attribute {name!r}; use .mean and .var for its tensors")

        def call(*args: Any, **kwargs: Any) -> Any:
            return Gaussian.__torch_function__(method, (Gaussian,), (self, *args), kwargs)

        return call

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
        if num_samples < 1:
            raise ValueError(f"sample: num_samples={num_samples} must be at least 1")
        source: dict[str, Any] = {} if generator is None else {"generator": generator}  # dynamo takes no None here
        noise = torch.randn((num_samples, *self.shape), dtype=self.var.dtype, device=self.device, **source)
        return self.mean + safe_sqrt(self.var) * noise

    @property
    def std(self) -> Tensor:
        return safe_sqrt(self.var)

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    @property
    def ndim(self) -> int:
        return self.mean.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.mean.device

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
    def requires_grad(self) -> bool:
        return self.mean.requires_grad or self.var.requires_grad

    @property
    def T(self) -> Gaussian:
        return self.map(lambda t: t.T)

    @property
    def mT(self) -> Gaussian:
        return self.map(lambda t: t.mT)

    def dim(self) -> int:
        return self.mean.dim()

    def size(self, dim: int | None = None) -> Any:
        return self.mean.shape if dim is None else self.mean.shape[dim]

    def numel(self) -> int:
        return self.mean.numel()

    def is_floating_point(self) -> bool:
        return True

    def is_contiguous(self, **kwargs: Any) -> bool:
        return self.mean.is_contiguous(**kwargs) and self.var.is_contiguous(**kwargs)

    def new_zeros(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.mean.new_zeros(*args, **kwargs)

    def new_ones(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.mean.new_ones(*args, **kwargs)

    def new_empty(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.mean.new_empty(*args, **kwargs)

    def __len__(self) -> int:
        return len(self.mean)

    def __iter__(self) -> Iterator[Gaussian]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Gaussian:
        return self.map(lambda t: t[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "Gaussian does not support assignment to a part of it; build a new one, e.g. with torch.where or torch.cat"
        )

    def __add__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.add, (self, other), {})

    def __radd__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.add, (self, other), {})

    def __sub__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.sub, (self, other), {})

    def __rsub__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.rsub, (self, other), {})

    def __mul__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.mul, (self, other), {})

    def __rmul__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.mul, (self, other), {})

    def __truediv__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.div, (self, other), {})

    def __rtruediv__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.reciprocal, (self,), {}) * other

    def __pow__(self, exponent: Any) -> Gaussian:
        return RULES.answer(torch.pow, (self, exponent), {})

    def __matmul__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.matmul, (self, other), {})

    def __rmatmul__(self, other: Any) -> Gaussian:
        return RULES.answer(torch.matmul, (other, self), {})

    def __neg__(self) -> Gaussian:
        return RULES.answer(torch.neg, (self,), {})

    def __abs__(self) -> Gaussian:
        return RULES.answer(torch.abs, (self,), {})

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

    def __iadd__(self, other: Any) -> Gaussian:
        return self.become(self + other)

    def __isub__(self, other: Any) -> Gaussian:
        return self.become(self - other)

    def __imul__(self, other: Any) -> Gaussian:
        return self.become(self * other)

    def __itruediv__(self, other: Any) -> Gaussian:
        return self.become(self / other)

    def become(self, other: Gaussian) -> Gaussian:
        """Take over another's mean and variance: what an in-place operation does to this object.

        Example:
            >>> import torch, mnvi
            >>> x = mnvi.Gaussian(torch.zeros(1), torch.ones(1))
            >>> x.add_(1).mean is x.mean
            True
        """
        if other.shape != self.shape:
            raise ValueError(
                f"an in-place operation cannot change a Gaussian of shape {tuple(self.shape)} to {tuple(other.shape)}"
            )
        self.mean = other.mean
        self.var = other.var
        return self

    def __repr__(self) -> str:
        return f"Gaussian(mean={self.mean}, var={self.var})"

    def __deepcopy__(self, memo: dict) -> Gaussian:
        return self.map(lambda t: t.__deepcopy__(memo))

    def __reduce__(self) -> tuple:
        return Gaussian.trusted, (self.mean, self.var)


def safe_sqrt(var: Tensor) -> Tensor:
    """Square root whose gradient at zero is zero instead of infinite."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1.0).sqrt(), 0.0)


def _check(mean: Tensor, var: Tensor) -> None:
    for name, value in (("mean", mean), ("var", var)):
        if not isinstance(value, Tensor):
            raise TypeError(f"Gaussian: {name} must be a torch.Tensor, got {type(value).__name__}")
        if not value.is_floating_point():
            raise TypeError(
                f"Gaussian: {name} must have a floating-point dtype, got {value.dtype}; call .float() on it"
            )
    if mean.shape != var.shape:
        raise ValueError(
            f"Gaussian: mean has shape {tuple(mean.shape)} and var {tuple(var.shape)}; they must be the same, "
            "use var.expand_as(mean) to repeat one"
        )
    if mean.dtype != var.dtype and not (mean.dtype in _HALF and var.dtype == torch.float32):
        raise TypeError(f"Gaussian: mean is {mean.dtype} and var {var.dtype}; convert one with .to(dtype)")
    if mean.device != var.device:
        raise ValueError(f"Gaussian: mean is on {mean.device} and var on {var.device}; move one with .to(device)")
    if values_can_be_read(var):
        lowest = var.detach().amin() if var.numel() else None
        if lowest is not None and not lowest >= 0:
            problem = "NaN" if lowest.isnan() else f"{lowest.item():g}"
            raise ValueError(f"Gaussian: var has an entry {problem}; variances must be >= 0")


def values_can_be_read(tensor: Tensor) -> bool:
    """False while tracing or inside ``torch.func.vmap``, where a branch on values is not possible."""
    return not (
        torch.compiler.is_compiling()
        or tensor.device.type == "meta"
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or type(tensor).__name__ == "FakeTensor"
    )


def _flatten(value: Gaussian) -> tuple[list[Tensor], None]:
    return [value.mean, value.var], None


def _flatten_with_keys(value: Gaussian) -> tuple[list[tuple[pytree.KeyEntry, Tensor]], None]:
    return [(pytree.GetAttrKey("mean"), value.mean), (pytree.GetAttrKey("var"), value.var)], None


def _unflatten(leaves: Any, context: None) -> Gaussian:
    mean, var = leaves
    return Gaussian.trusted(mean, var)


pytree.register_pytree_node(
    Gaussian,
    _flatten,
    _unflatten,
    serialized_type_name="mnvi.Gaussian",
    flatten_with_keys_fn=_flatten_with_keys,
)
