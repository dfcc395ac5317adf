"""Work that repeats beside the main work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(work: Callable[[], None], every: float, name: str, patience: float | None = None) -> Iterator[None]:
    """Calls a function again and again in a thread while the block runs, first after `every` seconds.

    Args:
        work: must not raise.
        every: seconds between two calls.
        name: of the thread.
        patience: seconds that the end of the block waits for a call that has begun; None: as long as it takes.
    """
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(every):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(patience)
