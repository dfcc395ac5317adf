"""Base of random values: each goes where a tensor goes, and its table of rules answers torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from mnvi.moments._torch import pytree
from mnvi.moments.checking import check_number
from mnvi.moments.normal import safe_sqrt

Class = TypeVar("Class", bound="type[RandomValue]")


class RandomValue:
    """Base of :class:`mnvi.Gaussian` and :class:`mnvi.JointGaussian`: a mean and the spread around it.

    A subclass sets ``_fields``, the names of its tensors in the order that its ``trusted`` takes them (all but the mean
    may be None), and ``_readable``, the properties that error messages recommend. It is a dataclass, so that
    DistributedDataParallel finds its tensors, and a :func:`tree_node`. :mod:`mnvi.rules` sets its table, ``_rules``.
    """

    mean: Tensor
    _rules: ClassVar[Any]  # a mnvi.rules.table.RuleTable; rules know values, not the other way round
    _fields: ClassVar[tuple[str, ...]]
    _readable: ClassVar[str]
    trusted: ClassVar[Callable[..., Any]]

    __slots__ = ("__weakref__",)
    __array_ufunc__ = None  # numpy's numbers and arrays leave arithmetic to the operators below

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} is not a numpy array; use its {self._readable}, e.g. x.mean.numpy()")

    @property
    def var(self) -> Tensor:
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: tuple[type, ...], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return cls._rules.answer(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        """Any method of a tensor, answered by the rule for ``torch.Tensor.<name>``."""
        method = None if name.startswith("__") else getattr(Tensor, name, None)
        if not callable(method):
            raise AttributeError(
                f"{type(self).__name__!r} has no attribute {name!r}; use {self._readable} for its tensors"
            )

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._rules.answer(method, (self, *args), kwargs)

        return call

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
    def requires_grad(self) -> bool:
        return any(tensor.requires_grad for _, tensor in self._tensors())

    def dim(self) -> int:
        return self.mean.dim()

    def size(self, dim: int | None = None) -> Any:
        return self.mean.shape if dim is None else self.mean.shape[dim]

    ndimension = dim

    def numel(self) -> int:
        return self.mean.numel()

    nelement = numel

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        for _, tensor in self._tensors():
            tensor.requires_grad_(requires_grad)
        return self

    def is_floating_point(self) -> bool:
        return True

    def __len__(self) -> int:
        if self.dim() == 0:  # torch.tensor(x) takes x for nested lists and ends up here
            kind = type(self).__name__
            raise TypeError(
                f"torch.tensor cannot take a {kind}, and a {kind} without dimensions has no length; use its "
                f"{self._readable}, which are tensors"
            )
        return len(self.mean)

    def __add__(self, other: Any) -> Self:
        return self._rules.answer(torch.add, (self, other), {})

    __radd__ = __add__

    def __sub__(self, other: Any) -> Self:
        return self._rules.answer(torch.sub, (self, other), {})

    def __rsub__(self, other: Any) -> Self:
        return self._rules.answer(torch.rsub, (self, other), {})

    def __mul__(self, other: Any) -> Self:
        return self._rules.answer(torch.mul, (self, other), {})

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Self:
        return self._rules.answer(torch.div, (self, other), {})

    def __rtruediv__(self, other: Any) -> Self:
        return self._rules.answer(torch.reciprocal, (self,), {}) * other

    def __pow__(self, exponent: Any) -> Self:
        return self._rules.answer(torch.pow, (self, exponent), {})

    def __rpow__(self, base: Any) -> Self:
        return self._rules.answer(Tensor.__rpow__, (self, base), {})

    def __floordiv__(self, other: Any) -> Self:
        return self._rules.answer(torch.floor_divide, (self, other), {})

    def __rfloordiv__(self, other: Any) -> Self:
        return self._rules.answer(torch.floor_divide, (other, self), {})

    def __mod__(self, other: Any) -> Self:
        return self._rules.answer(torch.remainder, (self, other), {})

    def __rmod__(self, other: Any) -> Self:
        return self._rules.answer(torch.remainder, (other, self), {})

    def __matmul__(self, other: Any) -> Self:
        return self._rules.answer(torch.matmul, (self, other), {})

    def __rmatmul__(self, other: Any) -> Self:
        return self._rules.answer(torch.matmul, (other, self), {})

    def __neg__(self) -> Self:
        return self._rules.answer(torch.neg, (self,), {})

    def __abs__(self) -> Self:
        return self._rules.answer(torch.abs, (self,), {})

    def __iadd__(self, other: Any) -> Self:
        return self.become(self + other)

    def __isub__(self, other: Any) -> Self:
        return self.become(self - other)

    def __imul__(self, other: Any) -> Self:
        return self.become(self * other)

    def __itruediv__(self, other: Any) -> Self:
        return self.become(self / other)

    def become(self, other: Self) -> Self:
        """Take over the tensors of another value, as in-place operations do.

        Example:
            >>> import torch, mnvi
            >>> x = mnvi.Gaussian(torch.zeros(1), torch.ones(1))
            >>> x.add_(1).mean is x.mean
            True
        """
        if other.shape != self.shape:
            raise ValueError(
                f"an in-place operation cannot change a {type(self).__name__} of shape {tuple(self.shape)} to "
                f"{tuple(other.shape)}"
            )
        for name in self._fields:
            setattr(self, name, getattr(other, name))
        return self

    def __reduce__(self) -> tuple:
        return restored, (type(self).__name__, *(tensor for _, tensor in self._tensors()))

    def _tensors(self) -> list[tuple[str, Tensor]]:
        """The tensors that are not None, with their names."""
        values = [(name, getattr(self, name)) for name in self._fields]
        return [(name, value) for name, value in values if value is not None]

    def _noise(self, num_samples: int, generator: torch.Generator | None) -> Tensor:
        """Standard normal numbers, [num_samples, *shape]."""
        check_number("sample: num_samples", num_samples, least=1, whole=True)
        source: dict[str, Any] = {} if generator is None else {"generator": generator}  # dynamo takes no None here
        return torch.randn((num_samples, *self.shape), dtype=self.var.dtype, device=self.device, **source)


_KINDS: dict[str, type[RandomValue]] = {}


def restored(kind: str, *tensors: Tensor) -> Any:
    """Rebuild a value from a pickle; ``torch.load`` trusts this function under ``weights_only=True``.

    Example:
        >>> import io, torch, mnvi
        >>> file = io.BytesIO()
        >>> torch.save(mnvi.Gaussian(torch.zeros(1), torch.ones(1)), file)
        >>> torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        Gaussian(mean=tensor([0.]), var=tensor([1.]))
    """
    return _KINDS[kind].trusted(*tensors)


torch.serialization.add_safe_globals([restored])


def tree_node(cls: Class) -> Class:
    """Class decorator: lets torch's transforms and ``torch.export`` see a value's tensors, and pickle save them."""
    _KINDS[cls.__name__] = cls
    pytree.register_pytree_node(
        cls,
        lambda value: ([tensor for _, tensor in value._tensors()], None),
        lambda leaves, context: cls.trusted(*leaves),
        serialized_type_name=f"mnvi.{cls.__name__}",
        flatten_with_keys_fn=lambda value: (
            [(pytree.GetAttrKey(name), tensor) for name, tensor in value._tensors()],
            None,
        ),
    )
    return cls


def check_tensors(kind: str, mean: Any, name: str, spread: Any) -> None:
    """Raise an error that names the argument unless both are floating-point tensors on one device."""
    for argument, value in (("mean", mean), (name, spread)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{kind}: {argument} must be a torch.Tensor, got {type(value).__name__}")
        if not value.is_floating_point():
            raise TypeError(
                f"{kind}: {argument} must have a floating-point dtype, got {value.dtype}; call .float() on it"
            )
    if mean.device != spread.device:
        raise ValueError(f"{kind}: mean is on {mean.device} and {name} on {spread.device}; move one with .to(device)")


def refuse_complex(*tensors: Tensor) -> None:
    """Raise an error if an operand is complex or a random value of another kind."""
    if any(isinstance(tensor, RandomValue) for tensor in tensors):
        raise TypeError(
            "a Gaussian and a JointGaussian do not combine: how two random values depend on each other is not tracked; "
            "if they are independent, use .marginals() of the JointGaussian"
        )
    if any(tensor.is_complex() for tensor in tensors):
        raise TypeError("random values are real and take no complex operand; compute real and imaginary part apart")


def refuse_all_but_first(function: str, first: Any, others: Iterable[Any]) -> None:
    """Raise an error unless the first argument, and no other, is random."""
    if not isinstance(first, RandomValue) or any(isinstance(other, RandomValue) for other in others):
        raise TypeError(f"{function}: only the first argument may be a random value; pass the mean of the others")
