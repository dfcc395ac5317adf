"""A stage's output: a progress bar on a terminal, lines elsewhere, and errors without a traceback."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from pipeline.errors import StudyError
from pipeline.masking import masked

INTERRUPTED = 130
EXIT_CODES = """exit codes:
  0    done
  1    an error; the message says what to do
  2    wrong arguments
  130  interrupted; the same command continues"""


def parser(command: str, about: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows what the command does, with examples, and what its exit codes mean.

    Args:
        command: the module, such as ``pipeline.train``.
        about: the module's docstring; its lines after the first ones are examples.
    """
    return argparse.ArgumentParser(
        prog=f"python -m {command}",
        description=about,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(main: Callable[[], None]) -> None:
    """Runs a stage; an error that the user can fix becomes a message and an exit code."""
    terminated = False

    def terminate(*_: Any) -> None:
        nonlocal terminated
        terminated = True
        sys.exit(INTERRUPTED)

    signal.signal(signal.SIGTERM, terminate)
    try:
        main()
        sys.stdout.flush()
    except SystemExit:
        if not terminated:
            raise
        print("terminated; run the same command to continue", file=sys.stderr)
        sys.exit(INTERRUPTED)  # a wait inside Ray ends with Ray's own exit code instead
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        sys.exit(128 + signal.SIGPIPE)
    except StudyError as error:
        print(f"error: {masked(str(error))}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; run the same command to continue", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose other end is closed, as after `| head -1`."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)  # poll always reports a closed end
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)  # otherwise Python complains on exit that it cannot flush
    return True


def say(message: str) -> None:
    """Prints a line, without passwords, that does not disturb a progress bar."""
    tqdm.write(masked(message), file=sys.stderr)


class Progress:
    """A bar on a terminal; elsewhere a line after two seconds, then one every minute.

    Args:
        done: steps that an earlier attempt has done; a line says so.
    """

    FIRST, EVERY = 2.0, 60.0  # seconds to the first line without a terminal, and between lines

    def __init__(self, what: str, total: int, unit: str, done: int = 0) -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, done
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(
            desc=what, total=total, unit=unit, initial=done, disable=not self._terminal, file=sys.stderr, leave=False
        )
        self._due = time.monotonic() + self.FIRST
        if done:
            say(f"{what}: continues after {done} of {total} {unit}")

    def advance(self, steps: int = 1, **figures: Any) -> None:
        self.done += steps
        shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in figures.items()}
        if figures:
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update(steps)
        now = time.monotonic()
        if not self._terminal and (now > self._due or (steps and self.done == self.total)):
            self._due = now + self.EVERY
            extra = "".join(f", {name} {value}" for name, value in shown.items())
            say(f"{self.what}: {self.done}/{self.total} {self.unit}{extra}")

    def close(self) -> None:
        self._bar.close()


@contextmanager
def progress(what: str, total: int, unit: str, done: int = 0) -> Iterator[Progress]:
    bar = Progress(what, total, unit, done)
    try:
        yield bar
    finally:
        bar.close()
