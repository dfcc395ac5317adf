"""Copies of one random entry inside a value, as ``expand``, ``repeat``, indexing and ``cat([x, relu(x)])`` make them.

Entries of a value count as independent. A sum over copies then has the wrong variance: that of n copies of one variable
is n²v, not nv. :func:`check_sum` warns where a linear layer, a product or a sum adds entries that are functions of the
same entry. Copies along dimensions that nothing sums over do no harm and stay silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import is_compiling
from mnvi.rules.dependence_warning import warn
from mnvi.rules.entries import can_be_read, name_of_path, numbered, remembered
from mnvi.rules.steps import Path, Step
from mnvi.values.gaussian import Gaussian
from mnvi.values.origin import Origin, origin_of

_DIM_AT = {"index_select": 1, "gather": 1, "take_along_dim": 2}  # position of the argument `dim`
_LARGEST = 1 << 24  # entries; numbering more of them costs more than the warning is worth


class Joined:
    """Parts of chains side by side: numbers for the entries of what ``cat`` or ``stack`` made.

    Args:
        function: ``torch.cat`` or one of its kind, applied to the list of parts.
        parts: the link of each part, or the shape of a part that is a plain tensor.
        args, kwargs: the other arguments of the call.
    """

    def __init__(self, function: Callable, parts: list[Origin | torch.Size], args: tuple, kwargs: dict[str, Any]):
        self.function, self.parts, self.args, self.kwargs = function, parts, args, kwargs
        self._starts: dict[int, int] = {}
        self.count = 0
        for part in parts:
            key, count = (id(part), part.numel()) if isinstance(part, torch.Size) else _source(part)
            if key not in self._starts:
                self._starts[key] = self.count
                self.count += count

    def numbers(self) -> Tensor:
        """Equal numbers for entries that are functions of the same entry of a common source."""
        pieces = []
        for part in self.parts:
            if isinstance(part, torch.Size):
                pieces.append(numbered(part) + self._starts[id(part)])
            else:
                pieces.append(_numbers(part) + self._starts[_source(part)[0]])
        joined: Tensor = self.function(pieces, *self.args, **self.kwargs)
        return joined

    def name(self) -> str | None:
        """Equal for parts that are joined alike; None if it depends on tensors."""
        names: list[str | None] = []
        for part in self.parts:
            if isinstance(part, torch.Size):
                names.append(str(tuple(part)))
            else:
                own = _name(part)
                names.append(None if own is None else f"{self._starts[_source(part)[0]]}:{own}")
        return None if None in names else f"{self.function.__name__}({names}, {self.args}, {self.kwargs})"

    def can_be_read(self) -> bool:
        return all(isinstance(part, torch.Size) or _readable(part) for part in self.parts)


def note_joined(result: Gaussian, function: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    """Note that a value has parts side by side, if some of them come from one source or have copies.

    Args:
        result: what ``function`` made.
        function: ``torch.cat`` or one of its kind.
        args, kwargs: of the call.
    """
    rest = {name: value for name, value in kwargs.items() if name not in ("tensors", "out")}
    parts, args = (kwargs["tensors"], args) if "tensors" in kwargs else (args[0], args[1:])
    random = [part for part in parts if isinstance(part, Gaussian)]
    sources = [part if part.origin is None else part.origin.family for part in random]
    repeated = len({id(source) for source in sources}) < len(sources)
    if is_compiling() or not (repeated or any(part.origin is not None and part.origin.copied for part in random)):
        return
    links = [origin_of(part) if isinstance(part, Gaussian) else part.shape for part in parts]
    link = Origin(result.shape)
    link.joined, link.copied = Joined(function, links, args, rest), True
    link.belongs_to(result)


def check_sum(name: str, value: Any, dims: Iterable[int], groups: int = 1) -> None:
    """Warn if a sum over some dimensions adds several functions of one random entry.

    Values of more than 16 million entries are not looked at, unless their dimensions alone tell.

    Args:
        name: the function that sums, for the message.
        value: what it sums; anything but a ``Gaussian`` is fine.
        dims: the dimensions that it sums over, of which the first one may be divided into groups.
        groups: the number of groups, which are not added to each other.

    Example:
        >>> import torch, mnvi, warnings
        >>> x = mnvi.Gaussian(torch.zeros(2, 1), torch.ones(2, 1)).expand(2, 3)
        >>> check_sum("sum", x, [0])
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     check_sum("sum", x, [1])
        >>> str(caught[0].message).split(",")[0]
        'sum: it adds copies of the same random value'
    """
    if is_compiling() or not isinstance(value, Gaussian):
        return
    link = value.origin
    if link is None or not link.copied or not link.is_current or not value.dim():
        return
    summed = sorted({d if d < 0 else d - value.dim() for d in dims})
    if prod(value.shape[d] for d in summed) > groups and _meet(link, summed, groups):
        warn(
            f"{name}: it adds copies of the same random value, as expand, repeat, indexing or cat make them, but they "
            "count as independent, so the variance is wrong; add first and copy afterwards, or measure the error with "
            "mnvi.compare_with_sampling"
        )


def _meet(link: Origin, dims: list[int], groups: int) -> bool:
    along = _copied_dims(link)
    if along is not None and along.isdisjoint(dims):
        return False
    own = _name(link)
    if link.shape.numel() > _LARGEST or (own is None and not _readable(link)):
        return False
    key = None if own is None else (_repeats, own, tuple(link.shape), tuple(dims), groups)
    answer: bool = remembered(key, lambda: _repeats(_numbers(link), dims, groups))
    return answer


def _repeats(numbers: Tensor, dims: list[int], groups: int) -> bool:
    """Whether a number occurs twice among those that are added."""
    others = [d for d in range(-numbers.dim(), 0) if d not in dims]
    added = numbers.permute(*others, *dims).flatten(len(others)).unflatten(-1, (groups, -1)).sort(-1).values
    return bool((added[..., 1:] == added[..., :-1]).any())


def _copied_dims(link: Origin) -> set[int] | None:
    """The dimensions, counted from the end, along which copies lie; None if that is not plain to see."""
    if link.root.joined is not None:
        return None
    found: set[int] = set()
    for after in link.links_from(link.root):
        assert after.parent is not None
        if not after.step.copies:
            if after.step.moves and found:
                return None
            continue
        more = _copied_by(after.step, after.parent.shape, after.shape)
        if more is None:
            return None
        found |= more
    return found


def _copied_by(step: Step, before: torch.Size, after: torch.Size) -> set[int] | None:
    name = step.known.plain
    if step.spreads or name in ("expand", "broadcast_to", "repeat", "tile"):
        return None if any(path.moves for path in step.paths) else _grown(before, after)
    if name in _DIM_AT:
        place = _DIM_AT[name]
        dim = step.kwargs.get("dim", step.args[place] if len(step.args) > place else None)
        if not isinstance(dim, int):
            return None
        spread = _grown(before, after) if name == "take_along_dim" else set()  # it broadcasts value and indices
        return {dim if dim < 0 else dim - len(before), *spread}
    if name == "getitem" and isinstance(step.args[1], Tensor):  # rows
        return set(range(-len(after), 1 - len(before)))
    return None


def _grown(before: torch.Size, after: torch.Size) -> set[int]:
    return {d for d in range(-len(after), 0) if -d > len(before) or before[d] != after[d]}


def _source(link: Origin) -> tuple[int, int]:
    """What tells the first link of a chain from others, and how many numbers its entries have."""
    root = link.root
    return id(root), root.shape.numel() if root.joined is None else root.joined.count


def _numbers(link: Origin) -> Tensor:
    root = link.root
    numbers = numbered(root.shape) if root.joined is None else root.joined.numbers()
    return Path(link.steps_from(root)).indices(numbers).cpu()


def _name(link: Origin) -> str | None:
    root = link.root
    begin = str(tuple(root.shape)) if root.joined is None else root.joined.name()
    path = name_of_path(Path(link.steps_from(root)))
    return None if begin is None or path is None else f"{begin}/{path}"


def _readable(link: Origin) -> bool:
    root = link.root
    path = can_be_read(Path(link.steps_from(root)))
    return path and (root.joined is None or root.joined.can_be_read())
