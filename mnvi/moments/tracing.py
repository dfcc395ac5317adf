"""Flag that tells whether the operations being recorded are meant for torch's compiler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Destination(threading.local):
    """Whether recorded operations will go through torch's compiler, which fuses plain operations but cannot look into
    those written for eager mode."""

    def __init__(self) -> None:
        self.compiler = False


Destination = _Destination()


@contextmanager
def for_compiler(compiler: bool = True) -> Iterator[None]:
    """Inside the block, formulas take the form that the compiler can fuse.

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
