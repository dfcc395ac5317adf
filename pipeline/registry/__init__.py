"""Registries of the names that the study knows; other packages can add to them.

Each module here holds one registry: `methods`, `networks`, `metrics` and `images`. An entry tells the study everything
it needs to know about a method, network, metric or image set, whose code is elsewhere. `plugins` in params.yaml names
modules of other packages. Reading the settings imports them, and they add their own entries:

    # my_package/study.py, with `plugins: [my_package.study]` in params.yaml
    from pipeline.registry.methods import METHODS, Method
    METHODS.add(Method("laplace", label="Laplace", build="my_package.laplace:build"))

An entry names functions as "package.module:function". A stage imports a function when it needs it, so that reading the
settings does not import torch.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, Protocol, TypeVar

from pipeline.errors import StudyError

Reference = str | Callable[..., Any]
"""A function, or "package.module:function"."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Registry(dict[str, Entry]):
    """Maps names to entries, in the order in which they were added."""

    def __init__(self, what: str, entries: Iterable[Entry] = ()) -> None:
        super().__init__({entry.name: entry for entry in entries})
        self.what = what
        self._origins: dict[str, str] = {}

    def add(self, entry: Entry) -> None:
        """Adds an entry of another package. The registry remembers the calling module: results depend on its code."""
        frame = inspect.currentframe()
        assert frame is not None and frame.f_back is not None
        origin = str(frame.f_back.f_globals["__name__"])
        if entry.name in self and self._origins.get(entry.name) != origin:
            by = self._origins.get(entry.name, "the study itself")
            raise StudyError(f"{origin}: {entry.name!r} is already {self.what} of {by}; choose a different name")
        self[entry.name] = entry
        self._origins[entry.name] = origin

    def origin(self, name: str) -> str | None:
        """The module of another package that added the entry; None for the study's own."""
        return self._origins.get(name)


def load(plugins: Iterable[str]) -> None:
    """Imports the plugin modules, which add their entries."""
    for index, name in enumerate(plugins):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise StudyError(
                f"plugins[{index}]: {name!r} cannot be imported ({error}); install its package, or run this in the "
                "folder that contains it"
            ) from error


def resolve(reference: Reference) -> Callable[..., Any]:
    """The function that a reference names."""
    if callable(reference):
        return reference
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise StudyError(f"{reference}: there is no such function ({error}); write package.module:function") from error
    if not callable(found):
        raise StudyError(f"{reference}: is {type(found).__name__}, not a function; name a function")
    return found


def spelled(reference: Reference) -> str:
    """The reference as text, for another process to resolve."""
    return reference if isinstance(reference, str) else f"{reference.__module__}:{reference.__qualname__}"


def fitting(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """The offered arguments that the function's signature names."""
    return {name: offered[name] for name in inspect.signature(function).parameters if name in offered}


def essence(entry: Any) -> dict[str, Any]:
    """The fields of an entry that results depend on. Fields with `compare=False`, such as labels, do not matter."""
    kept = {one.name: getattr(entry, one.name) for one in fields(entry) if one.compare}
    plain: dict[str, Any] = json.loads(json.dumps(kept, default=lambda it: spelled(it) if callable(it) else asdict(it)))
    return plain
