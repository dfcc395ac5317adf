"""Where a value comes from: the chain of functions of known kind that lead to it from another value.

Two values with a common ancestor are not independent. A chain starts anew wherever a value gets uncertainty of its own,
as in a layer with a posterior, and wherever entries mix, as in a sum. Views share memory with what they were taken
from, so an in-place change reaches every view of the same value.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from mnvi.moments._torch import is_compiling, share_memory
from mnvi.values.base import RandomValue
from mnvi.values.gaussian import Gaussian

LONGEST = 32  # a longer chain starts anew, so that a loop over thousands of steps keeps nothing alive


class Family:
    """One object, shared by all chains that start at the same value."""

    __slots__ = ()


class Origin:
    """A link of the chain: the value that a ``step`` made of the value before.

    The chain holds no value alive: it refers weakly to moments and to the object that has them. Inside a compiled
    function it holds them, and knows nothing of values outside.

    Args:
        shape: the value's shape.
        parent: the link before; None for the first one.
        step: how the value follows from its parent's; it has a method ``indices``, which moves the numbers of entries.
        view: whether the value shares memory with its parent's.

    Attributes:
        copied: whether several entries of the value may be functions of one entry of the first link's value.
        joined: for a first link that puts parts of other chains side by side, what :mod:`mnvi.rules.copies` knows.
        average: for a first link that is a sum or mean of another value, what :mod:`mnvi.rules.own_means` knows.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.Gaussian(torch.zeros(2), torch.ones(2))
        >>> y, z = torch.relu(x), x * 2
        >>> common_ancestor([y, z]) is origin_of(x)
        True
    """

    __slots__ = (
        "_held",
        "_mean",
        "_owner",
        "_shared",
        "_var",
        "average",
        "copied",
        "depth",
        "family",
        "joined",
        "parent",
        "shape",
        "source",
        "step",
        "views",
    )

    def __init__(self, shape: torch.Size, parent: Origin | None = None, step: Any = None, view: bool = False) -> None:
        self.shape, self.parent, self.step = shape, parent, step
        self.family: Family = Family() if parent is None else parent.family
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.views: list[ref[Gaussian]] = parent.views if view and parent is not None else []
        self.source: Gaussian | None = None
        self.copied: bool = parent is not None and (parent.copied or (not is_compiling() and step.copies))
        self.joined: Any = None
        self.average: Any = None
        self._held: tuple[Tensor, Tensor] | None = None
        self._shared: Tensor | None = None
        self._mean: ref[Tensor] | None = None
        self._var: ref[Tensor] | None = None
        self._owner: ref[Gaussian] | None = None

    def belongs_to(self, value: Gaussian) -> None:
        """Make this the link of a value."""
        value.origin = self
        if is_compiling():  # the compiler knows no weak references, and what it traces takes no memory
            self._held, self._shared = (value.mean, value.var), value.shared
            return
        self._mean, self._var, self._owner = ref(value.mean), ref(value.var), ref(value)
        if self.parent is not None and self.parent.views is self.views:
            self.views.append(self._owner)

    def moments(self) -> tuple[Tensor, Tensor] | None:
        """Mean and variance of the value, unless they are gone."""
        if self._held is not None:
            return self._held
        if self._mean is None or self._var is None:
            return None
        mean, var = self._mean(), self._var()
        return None if mean is None or var is None else (mean, var)

    def owner(self) -> Gaussian | None:
        """The object that has this value, unless it is gone or has changed in place."""
        value = None if self._owner is None else self._owner()
        return value if value is not None and value.origin is self else None

    def value(self) -> Gaussian | None:
        """A value with these moments and their covariance, unless it is gone."""
        return self.owner() if self._held is None else Gaussian.trusted(*self._held, self._shared)

    @property
    def root(self) -> Origin:
        """The first link of the chain."""
        link = self
        while link.parent is not None:
            link = link.parent
        return link

    @property
    def is_current(self) -> bool:
        """False for a link from outside of what is being compiled, and outside for one from inside."""
        return (self._held is not None) == is_compiling()

    def links_from(self, ancestor: Origin) -> list[Origin]:
        """The links after an ancestor's, this one last."""
        links = []
        link = self
        while link is not ancestor:
            links.append(link)
            assert link.parent is not None, "not an ancestor"
            link = link.parent
        return links[::-1]

    def steps_from(self, ancestor: Origin) -> tuple:
        """What leads from an ancestor's value to this one, in order."""
        return tuple([link.step for link in self.links_from(ancestor)])

    def written(self, value: Gaussian) -> None:
        """Pass a change in place on to values that share memory: views of the value, and what it is a view of.

        While compiling, only what it is a view of changes.

        Args:
            value: the value that changed, of which this was the link.
        """
        if is_compiling():
            _write_to_sources(self, value)
        elif self.views:
            self._write_to_family(value)

    def _write_to_family(self, value: Gaussian) -> None:
        top = self
        while top.parent is not None and top.parent.views is self.views:
            top = top.parent
        others = [other for found in self.views if (other := found()) is not None and other is not value]
        others = [other for other in others if other.origin is not None and other.origin.views is self.views]
        base = top.owner()
        if base is not None:
            others.append(base)
        if not others:
            return
        numbers = torch.arange(top.shape.numel(), device="cpu").view(top.shape)
        place = torch.full_like(numbers, -1).flatten()
        own = _moved(numbers, self, top).flatten()
        place[own] = torch.arange(own.numel(), device=place.device)
        fresh = Origin(top.shape)
        for other in others:
            link = other.origin
            source = place[_moved(numbers, link, top)].to(value.device)
            if (source >= 0).any():
                _overwrite(other, source, value)
            _relink(other, link, top, fresh)
        _relink(value, self, top, fresh)


def origin_of(value: Gaussian) -> Origin:
    """The value's link; a value without one becomes the first of a chain."""
    if value.origin is None or not value.origin.is_current:
        Origin(value.shape).belongs_to(value)
    found: Origin = value.origin
    return found


def continued(value: Gaussian, parent: Origin, step: Any, source: Gaussian | None = None) -> None:
    """Note that a value follows from another by a step, unless the chain is long.

    Args:
        value: the result.
        parent: the link of the value that it follows from.
        step: how it follows.
        source: the value that it follows from if the step moves entries, so that the result may be a view.
    """
    if parent.depth >= LONGEST:
        return
    if is_compiling():
        link = Origin(value.shape, parent, step)
        link.source = source
    else:
        link = Origin(value.shape, parent, step, source is not None and share_memory(source.mean, value.mean))
    link.belongs_to(value)


def common_ancestor(values: list[Gaussian]) -> Origin | None:
    """The nearest link that the chains of all values share; None if there is none."""
    first = values[0].origin
    for value in values:
        if value.origin is None or value.origin.family is not first.family or not value.origin.is_current:
            return None
    link = first
    for value in values[1:]:
        link = nearest(value.origin, link)
    return link


def nearest(a: Any, b: Any) -> Origin:
    """The nearest common link of two chains of one family."""
    while a is not b:
        if a.depth >= b.depth:
            a = a.parent
        else:
            b = b.parent
    common: Origin = a
    return common


def _write_to_sources(link: Origin, value: Gaussian) -> None:
    """Write a changed view into clones of what it was taken from; where a step has copied, nothing changes."""
    steps: list[Any] = []
    while link.source is not None and link.parent is not None:
        steps.insert(0, link.step)
        source = link.source
        parts = []
        for old, new in ((source.mean, value.mean), (source.var, value.var)):
            part = whole = old.clone()
            for step in steps:
                part = step(part)
            part.copy_(new)
            parts.append(whole)
        RandomValue.become(source, Gaussian.trusted(*parts))
        source.origin = None
        link = link.parent


def _moved(numbers: Tensor, link: Origin, top: Origin) -> Tensor:
    for step in link.steps_from(top):
        numbers = step.indices(numbers)
    return numbers


def _overwrite(value: Gaussian, source: Tensor, by: Gaussian) -> None:
    """Replace entries by those of another value whose number is given; -1 keeps an entry."""
    pairs = (by.mean, value.mean), (by.var, value.var)
    parts = [torch.where(source >= 0, new.flatten()[source.clamp(min=0)], old) for new, old in pairs]
    RandomValue.become(value, Gaussian.trusted(*parts))


def _relink(value: Gaussian, old: Origin, top: Origin, fresh: Origin) -> None:
    """Make a value the same view of a fresh source as it was of the old one."""
    link = fresh
    for before in old.links_from(top):
        link = Origin(before.shape, link, before.step, view=True)
    link.belongs_to(value)
