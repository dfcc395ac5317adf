"""Functions that a chain of origins can follow, and how to apply them again.

A step is elementwise, or moves entries without mixing them. Applied to tensors, it gives the values of the result;
applied to the numbers of entries, it tells which entry of the source each entry of the result comes from.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.rules.table import every
from mnvi.values.gaussian import Gaussian
from mnvi.values.origin import Origin

_ELEMENTWISE = """
    add sub subtract rsub mul multiply div divide true_divide neg negative reciprocal square pow abs absolute maximum
    minimum fmax fmin lerp addcmul relu relu6 leaky_relu elu celu selu gelu silu mish sigmoid expit logsigmoid
    log_sigmoid tanh tanhshrink hardtanh hardswish hardsigmoid softplus softsign softshrink hardshrink threshold clamp
    clip clamp_min clamp_max erf erfc ndtr exp expm1 exp2 sin cos sinh cosh atan asinh sqrt rsqrt log log1p log2 log10
    masked_fill
"""
_MOVES = """
    view reshape flatten unflatten permute transpose swapaxes swapdims movedim moveaxis t squeeze unsqueeze expand
    repeat repeat_interleave tile broadcast_to narrow select index_select take_along_dim gather flip roll rot90 unfold
    diagonal pixel_shuffle pixel_unshuffle channel_shuffle contiguous clone detach cpu cuda ravel fliplr flipud take
    to type float double half bfloat16 chunk split tensor_split unbind hsplit vsplit
"""
_COPYING = {
    "expand", "broadcast_to", "repeat", "repeat_interleave", "tile", "index_select", "gather", "take_along_dim", "take",
    "unfold",
}  # fmt: skip
_STILL = {"cpu", "cuda", "to", "type", "float", "double", "half", "bfloat16", "contiguous", "clone", "detach"}
_AFFINE = {"add", "sub", "subtract", "rsub", "neg", "negative", "lerp"}
_PRODUCTS = {"mul", "multiply", "div", "divide", "true_divide", "addcmul"}  # affine if one operand is random


class Known(NamedTuple):
    """A function that a chain can follow."""

    function: Callable  # never in place
    plain: str  # its name without namespace
    moves: bool
    inplace_at: int  # position of the argument `inplace`, -1 without one


KNOWN: dict[Callable, Known] = {}


class Path:
    """Steps from one value to another; without steps, the value itself."""

    __slots__ = ("steps",)

    def __init__(self, steps: tuple[Step, ...] = ()) -> None:
        self.steps = steps

    def __call__(self, values: Tensor) -> Any:
        for step in self.steps:
            values = step(values)
        return values

    def indices(self, indices: Tensor) -> Tensor:
        """Numbers of entries, moved as the steps move them."""
        for step in self.steps:
            indices = step.indices(indices)
        return indices

    def moved_only(self) -> Path:
        """The steps that move entries, without those that change values."""
        steps: list[Step] = []
        for step in self.steps:
            if step.known.moves:
                steps.append(step)
            else:
                steps.extend(step.paths[0].moved_only().steps)
        return Path(tuple(steps))

    @property
    def is_affine(self) -> bool:
        return all(step.is_affine for step in self.steps)

    @property
    def moves(self) -> bool:
        return any(step.moves for step in self.steps)

    @property
    def has_tensors(self) -> bool:
        return any(step.has_tensors for step in self.steps)


class Step:
    """A call of a known function in which paths stand for its random operands.

    Args:
        known: the function.
        args, kwargs: its arguments.
        piece: which one of several results.
        spreads: whether a wider operand repeats the entries of the random one.
    """

    __slots__ = ("args", "known", "kwargs", "piece", "spreads")

    def __init__(
        self,
        known: Known,
        args: tuple,
        kwargs: dict[str, Any] | None = None,
        piece: int | None = None,
        spreads: bool = False,
    ) -> None:
        self.known, self.args, self.kwargs, self.piece, self.spreads = known, args, kwargs or {}, piece, spreads

    def __call__(self, values: Tensor) -> Any:
        result = self._call(lambda path: path(values))
        return result if self.piece is None else result[self.piece]

    def indices(self, indices: Tensor) -> Tensor:
        if self.known.moves:
            if self.known.plain in _STILL:
                return indices
            for tensor in tensors_in(self._values()):
                indices = indices.to(tensor.device)
            moved = self._call(lambda path: path.indices(indices))
            result: Tensor = moved if self.piece is None else moved[self.piece]
            return result
        own = [path.indices(indices) for path in self.paths]
        others = [value.shape for value in self._values() if isinstance(value, Tensor)]
        return own[0].expand(torch.broadcast_shapes(*(index.shape for index in own), *others))

    @property
    def moves(self) -> bool:
        """Whether an entry may end up in another place, or in several."""
        own = self.spreads or (self.known.moves and self.known.plain not in _STILL)
        return own or any(path.moves for path in self.paths)

    @property
    def copies(self) -> bool:
        """Whether an entry may end up in several places."""
        if self.spreads or self.known.plain in _COPYING:
            return True
        if self.known.plain == "getitem" and not _picks_each_once(self.args[1]):
            return True
        return any(step.copies for path in self.paths for step in path.steps)

    @property
    def paths(self) -> list[Path]:
        return [value for value in self._values() if isinstance(value, Path)]

    @property
    def is_affine(self) -> bool:
        paths, name = self.paths, self.known.plain
        linear = self.known.moves or name in _AFFINE or (name in _PRODUCTS and len(paths) == 1)
        divides = name.endswith("div") or "divide" in name
        by_constant = not divides or isinstance(self.args[0], Path)
        return linear and by_constant and all(path.is_affine for path in paths)

    @property
    def has_tensors(self) -> bool:
        """Whether an elementwise step combines entries with those of a tensor, which may differ."""
        tensors = any(isinstance(value, Tensor) and value.dim() > 0 for value in self._values())
        return (tensors and not self.known.moves) or any(path.has_tensors for path in self.paths)

    def _values(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]

    def _call(self, replace: Callable[[Path], Any]) -> Any:
        def filled(value: Any) -> Any:
            return replace(value) if isinstance(value, Path) else value

        return self.known.function(*map(filled, self.args), **{k: filled(v) for k, v in self.kwargs.items()})


_ITSELF = Path()


def step(
    known: Known, args: tuple, kwargs: dict[str, Any], source: Origin, piece: int | None = None, spreads: bool = False
) -> Step:
    """The step of a call, with the path from the source to each random operand."""

    def filled(value: Any) -> Any:
        if not isinstance(value, Gaussian):
            return value
        return _ITSELF if value.origin is source else Path(value.origin.steps_from(source))

    if known.inplace_at >= 0:
        args = args[: known.inplace_at] + args[known.inplace_at + 1 :]
    kept = {name: filled(value) for name, value in kwargs.items() if name not in ("inplace", "out")} if kwargs else None
    return Step(known, tuple([filled(value) for value in args]), kept, piece, spreads)


def known_as(function: Callable) -> Known | None:
    """What is known about a function; None if a chain cannot follow it."""
    if function is Tensor.__rsub__:  # Dynamo misses it as a key of a dictionary
        return _REFLECTED
    return KNOWN.get(function)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors among arguments, which may be nested in lists and tuples."""
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return [value] if isinstance(value, Tensor) else []


def _picks_each_once(index: Any) -> bool:
    """Whether an index, made of slices, numbers and masks, cannot pick an entry twice."""
    if isinstance(index, Tensor):
        return index.dtype in (torch.bool, torch.uint8) or index.dim() == 0
    if isinstance(index, tuple):
        return all(_picks_each_once(part) for part in index)
    return index is None or index is Ellipsis or isinstance(index, int | slice)


def _inplace_at(function: Callable) -> int:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # not written in Python
        return -1
    return names.index("inplace") if "inplace" in names else -1


def _learn(names: str, moves: bool) -> None:
    for name in names.split():
        try:
            spellings = every(name)
        except AttributeError:  # a method only
            spellings = (getattr(Tensor, name),)
        plain = {(getattr(f, "__qualname__", ""), f.__name__): f for f in spellings}
        for function in spellings:
            same: Callable | None = function
            if function.__name__.endswith("_") and not function.__name__.endswith("__"):
                qualified, own = getattr(function, "__qualname__", ""), function.__name__
                same = plain.get((qualified.removesuffix("_"), own.removesuffix("_")), getattr(torch, name, None))
            if same is not None:
                KNOWN[function] = Known(same, name, moves, _inplace_at(same))


_learn(_ELEMENTWISE, moves=False)
_learn(_MOVES, moves=True)
KNOWN.pop(F.unfold)  # pads with zeros
for _function, _name in ((operator.add, "add"), (operator.sub, "sub"), (operator.mul, "mul"), (operator.neg, "neg")):
    KNOWN[_function] = Known(_function, _name, False, -1)
for _function in (operator.truediv, Tensor.__truediv__):
    KNOWN[_function] = Known(_function, "div", False, -1)
_REFLECTED = Known(torch.rsub, "rsub", False, -1)
KNOWN[Tensor.__pow__] = Known(torch.pow, "pow", False, -1)
KNOWN[operator.getitem] = Known(operator.getitem, "getitem", True, -1)
