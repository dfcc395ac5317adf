"""What is known about a trace while it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Destination:
    """Whether the operations being recorded will go through torch's compiler, which fuses plain ones but cannot look
    into those written for eager mode."""

    compiler = False


@contextmanager
def for_compiler(compiler: bool = True) -> Iterator[None]:
    """Formulas take the form that the compiler can fuse.

    Example:
        >>> with for_compiler():
        ...     Destination.compiler
        True
    """
    before, Destination.compiler = Destination.compiler, compiler
    try:
        yield
    finally:
        Destination.compiler = before
