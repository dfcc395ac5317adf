"""Shows how far a training is: tqdm's bar where tqdm is installed, otherwise a line for each epoch."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Display(Protocol):
    """Shows the progress of a training."""

    def batch(self) -> None:
        """A batch is done."""

    def epoch(self, row: dict[str, float]) -> None:
        """An epoch is done."""

    def say(self, text: str) -> None:
        """Print a message."""

    def close(self) -> None:
        """The training has ended, or was stopped."""


class Silent:
    """Shows nothing."""

    def batch(self) -> None: ...

    def epoch(self, row: dict[str, float]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class Lines(Silent):
    """A line for each epoch, on stderr."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def epoch(self, row: dict[str, float]) -> None:
        self.say(f"epoch {row['epoch']:.0f}/{self.epochs}: {', '.join(f'{k} {v}' for k, v in summary(row).items())}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(Silent):
    """tqdm's bar, which counts batches and shows the scores of the last epoch."""

    def __init__(self, tqdm: Any, epochs: int, batches: int | None, done: int) -> None:
        total = None if batches is None else epochs * batches
        self.epochs = epochs
        self.bar = tqdm(total=total, initial=0 if batches is None else done * batches, unit="batch")
        self.bar.set_description(f"epoch {min(done + 1, epochs)}/{epochs}")

    def batch(self) -> None:
        self.bar.update()

    def epoch(self, row: dict[str, float]) -> None:
        self.bar.set_description(f"epoch {min(int(row['epoch']) + 1, self.epochs)}/{self.epochs}")
        self.bar.set_postfix(summary(row))

    def say(self, text: str) -> None:
        self.bar.write(text, file=sys.stderr)

    def close(self) -> None:
        self.bar.close()


def display(shown: bool, epochs: int, batches: int | None, done: int) -> Display:
    """The display that fits these arguments.

    Args:
        shown: whether to show any.
        epochs: number of epochs in all.
        batches: number of batches in an epoch, if it is known.
        done: number of epochs that an earlier call has finished.
    """
    if not shown:
        return Silent()
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return Lines(epochs)
    return Bar(tqdm, epochs, batches, done)


def summary(row: dict[str, float]) -> dict[str, str]:
    """The scores of an epoch in short: the validation's if there are any."""
    chosen = {name: value for name, value in row.items() if name.startswith("validation_")}
    names = {"loss": row["loss"], **{name.removeprefix("validation_"): value for name, value in chosen.items()}}
    return {name: f"{value:.4g}" for name, value in names.items()}
