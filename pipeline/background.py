"""Background threads: repeated calls, and work done ahead of time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


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


def ahead(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
    """Yields the results of ``work`` in the order of the items; works on at most ``most`` items at a time."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) == most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
