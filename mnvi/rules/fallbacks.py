"""Reports when a rule uses a coarser assumption than the options ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mnvi.moments._torch import is_compiling

_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("mnvi.fallbacks", default=None)


def fell_back(function: str) -> None:
    """Report that a function fell back, such as to independence under ``spatial="shared_weights"``.

    Rules call this; without a listener, and inside a compiled function, it does nothing.

    Args:
        function: the name that a user would look for, such as ``"torch.nn.functional.grid_sample"``.
    """
    if not is_compiling() and (listener := _LISTENER.get()) is not None:
        listener(function)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener(function)`` for every fallback inside the block.

    Example:
        >>> found = []
        >>> with listening(found.append):
        ...     fell_back("torch.cumsum")
        >>> found
        ['torch.cumsum']
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
