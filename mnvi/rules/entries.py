"""Compares the entries that two values take from a common source: equal, disjoint or overlapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import is_compiling, outside_of_traces, values_can_be_read
from mnvi.rules.steps import Path, Step, tensors_in

_MOST = 256  # remembered answers
_ANSWERS: dict[tuple, Any] = {}


def same_entries(shape: torch.Size, paths: list[Path]) -> bool | Tensor | None:
    """Whether all paths lead from the same entry of the source to each entry of their common result.

    Returns:
        True or False where this holds for all entries of the result, a tensor where it differs, None where it cannot be
        told: where three paths meet entries of which only two are the same.
    """
    if not any(path.moves for path in paths):
        return True
    if len(paths) == 2:
        told = _told_by_steps(*paths)
        if told is not None:
            return told
    return _asked(_compared, shape, paths)


def some_entries(shape: torch.Size, paths: list[Path]) -> bool | None:
    """Whether any two paths use an entry of the source in common; None where it cannot be told."""
    pairs = [(a, b) for i, a in enumerate(paths) for b in paths[:i]]
    if all([_told_by_steps(a, b) is False for a, b in pairs]):
        return False
    return _asked(_overlapping, shape, paths)


def transposed_entries(shape: torch.Size, a: Path, b: Path) -> bool | None:
    """Whether one path leads to the transpose of what the other leads to, with all entries distinct."""
    movements = [_movements(path) for path in (a, b)]
    for one, other in (movements, movements[::-1]):
        if one == [] and other is not None and len(other) == 1 and _transposes(other[0], len(shape)):
            return True
    return _asked(_transposed, shape, [a, b])


def _transposes(step: Step, dims: int) -> bool:
    """Whether a step swaps the last two of ``dims`` dimensions."""
    numbers = [value for value in step.args if type(value) is int]
    if step.known.plain == "t":
        return dims == 2
    if step.known.plain == "permute":
        return numbers == [*range(dims - 2), dims - 1, dims - 2]
    return step.known.plain in ("transpose", "swapaxes", "swapdims") and sorted([n % dims for n in numbers]) == [
        dims - 2,
        dims - 1,
    ]


def _told_by_steps(a: Path, b: Path) -> bool | None:
    """Whether two paths lead from the same entries, if their steps tell it without a look at the entries.

    Equal movements lead from the same entries, different pieces of one value from different ones.
    """
    ours, theirs = _movements(a), _movements(b)
    if ours is None or theirs is None:
        return None
    for own, other in zip(ours, theirs, strict=False):
        if (
            own.known.function is not other.known.function
            or len(own.args) != len(other.args)
            or own.kwargs != other.kwargs
        ):
            return None
        equal = [_equal(x, y) for x, y in zip(own.args, other.args, strict=True)]
        if all(equal) and own.piece != other.piece:
            return False
        if not all(equal):
            picks = own.known.plain in ("getitem", "select") and all(equal[:-1])
            return False if picks and _differ(own.args[-1], other.args[-1]) else None
    return True if len(ours) == len(theirs) else None


def _movements(path: Path) -> list[Step] | None:
    """The steps that move entries; None if some repeat them."""
    found: list[Step] = []
    for step in path.steps:
        if step.spreads:
            return None
        if not step.known.moves:
            inner = _movements(step.paths[0])
            if inner is None:
                return None
            found.extend(inner)
        elif step.moves:
            found.append(step)
    return found


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    return True if isinstance(a, Path) and isinstance(b, Path) else bool(a == b)


def _differ(a: Any, b: Any) -> bool:
    """Whether two indices pick different entries: different numbers, or slices without a common entry."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        pairs = list(zip(a, b, strict=False))
        plain = all([x is Ellipsis or type(x) in (int, slice) for pair in pairs for x in pair])
        return plain and len(a) == len(b) and any([_differ(x, y) for x, y in pairs])
    if isinstance(a, slice) and isinstance(b, slice):
        if a.step not in (None, 1) or b.step not in (None, 1):
            return a.step == b.step and ((a.start or 0) - (b.start or 0)) % a.step != 0
        return _ends_before(a, b) or _ends_before(b, a)
    return type(a) is int and type(b) is int and a != b and (a >= 0) == (b >= 0)


def _ends_before(a: slice, b: slice) -> bool:
    known = a.stop is not None and b.start is not None and (a.stop >= 0) == (b.start >= 0)
    return known and a.stop <= b.start


def _compared(indices: list[Tensor]) -> bool | Tensor | None:
    first, *others = torch.broadcast_tensors(*indices)
    equal = torch.stack([first == other for other in others])
    if is_compiling():  # values cannot be read, so both cases are computed
        return equal[0] if len(others) == 1 else None
    if not torch.equal(equal.all(0), equal.any(0)):
        return None
    return equal[0] if equal.any() and not equal.all() else bool(equal.all())


def _overlapping(indices: list[Tensor]) -> bool:
    seen = torch.cat([index.unique() for index in indices])
    return seen.unique().numel() < seen.numel()


def _transposed(indices: list[Tensor]) -> bool:
    a, b = indices
    same = a.dim() > 1 and b.dim() > 1 and a.shape == b.mT.shape and torch.equal(a, b.mT)
    return same and a.unique().numel() == a.numel()


def _asked(question: Callable[[list[Tensor]], Any], shape: torch.Size, paths: list[Path]) -> Any:
    """The answer to a question about the entries that paths lead to; None if their values cannot be read."""
    if is_compiling():
        return _compared(_entries(shape, paths)) if question is _compared else None
    key = _key(question, shape, paths)
    if key is None and not all(can_be_read(path) for path in paths):
        return None
    return remembered(key, lambda: question(_entries(shape, paths)))


def remembered(key: tuple | None, answer: Callable[[], Any]) -> Any:
    """What a function answers, asked once for each key; None as the key asks each time.

    Example:
        >>> remembered(("an example", 1), lambda: "first"), remembered(("an example", 1), lambda: "second")
        ('first', 'first')
    """
    if key is not None and key in _ANSWERS:
        return _ANSWERS[key]
    with outside_of_traces(), torch.no_grad():
        found = answer()
    if key is not None:
        if len(_ANSWERS) >= _MOST:
            _ANSWERS.clear()
        _ANSWERS[key] = found
    return found


def numbered(shape: torch.Size) -> Tensor:
    """A number for each entry, on the CPU whatever torch's default device is.

    Example:
        >>> numbered(torch.Size([2, 2]))
        tensor([[0, 1],
                [2, 3]])
    """
    return torch.arange(shape.numel(), device="cpu").view(shape)


def _entries(shape: torch.Size, paths: list[Path]) -> list[Tensor]:
    """For each path, the numbers of the entries that it leads to."""
    numbers = numbered(shape)
    return [path.indices(numbers).to(numbers.device) for path in paths]


def _key(question: Callable, shape: torch.Size, paths: list[Path]) -> tuple | None:
    """Equal for questions with the same answer; None if it depends on tensors."""
    names = [name_of_path(path) for path in paths]
    return None if None in names else (question, shape, *names)


def name_of_path(what: Path | Step) -> str | None:
    """Equal for paths that move entries alike; None if it depends on tensors."""
    if isinstance(what, Path):
        names = [name_of_path(step) for step in what.steps]
        return None if None in names else "/".join(map(str, names))
    parts: list[str | None] = []
    for key, value in (*(("", value) for value in what.args), *sorted(what.kwargs.items())):
        if tensors_in(value):
            if what.known.moves:
                return None
            name: str | None = f"tensor{[tuple(tensor.shape) for tensor in tensors_in(value)]}"
        else:
            name = name_of_path(value) if isinstance(value, Path) else repr(value)
        parts.append(None if name is None else f"{key}={name}")
    return None if None in parts else f"{what.known.plain}({', '.join(map(str, parts))})[{what.piece}]"


def can_be_read(path: Path) -> bool:
    """Whether the values of all tensors that move entries can be read."""
    for step in path.steps:
        if step.known.moves and not all(values_can_be_read(t) for t in tensors_in((*step.args, *step.kwargs.values()))):
            return False
        if not all(can_be_read(inner) for inner in step.paths):
            return False
    return True
