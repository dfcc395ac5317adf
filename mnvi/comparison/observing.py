"""Watches the outputs of all modules: their predicted moments in one pass, running sums of samples in the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mnvi.moments._torch import pytree
from mnvi.values.base import RandomValue


class Place(NamedTuple):
    """Where a value appears: the module, which part of its output, in which call of a pass, for which examples."""

    module: str
    part: str
    call: int
    chunk: int


@dataclass
class Seen:
    """A predicted value and the sums of what sampled weights give in its place, all on the CPU in float64.

    The sums are of powers of the difference to the predicted mean, so that they lose no digits.
    """

    kind: str
    shape: torch.Size
    entries: Tensor | None  # flat indices of those that are watched; None for all
    mean: Tensor
    std: Tensor
    count: int = 0
    powers: Tensor = field(default_factory=lambda: torch.zeros(0))  # [4, entries]

    def watched(self, value: Tensor) -> Tensor:
        flat = value.detach().flatten()
        return (flat if self.entries is None else flat[self.entries.to(flat.device)]).double().cpu()

    def add(self, sample: Tensor) -> None:
        difference = self.watched(sample) - self.mean
        powers = torch.stack([difference**power for power in (1, 2, 3, 4)])
        self.powers = powers if self.count == 0 else self.powers + powers
        self.count += 1


class Observer:
    """Watches the modules of a model.

    Args:
        model: from :func:`mnvi.convert`.
        most: number of entries of an output to watch; of larger outputs a random choice.
        generator: makes the choice.
    """

    def __init__(self, model: nn.Module, most: int, generator: torch.Generator | None) -> None:
        self.model, self.most, self.generator = model, most, generator
        self.seen: dict[Place, Seen] = {}

    @contextmanager
    def predicting(self, chunk: int) -> Iterator[None]:
        """Inside, outputs that are random values are noted."""
        last: list[Tensor] = []

        def note(place: Place, module: nn.Module, value: Any) -> None:
            if not isinstance(value, RandomValue) or not value.numel():
                return
            if place.module and any(value.mean is mean for mean in last):
                return  # a container that returns its last module's output, or a module that does nothing
            last[:] = [value.mean]
            entries = self._choice(value.numel())
            seen = Seen(type(module).__name__, value.shape, entries, torch.zeros(0), torch.zeros(0))
            seen.mean, seen.std = seen.watched(value.mean), seen.watched(value.var).sqrt()
            self.seen[place] = seen

        with self._hooks(chunk, note):
            yield

    @contextmanager
    def sampling(self, chunk: int) -> Iterator[None]:
        """Inside, outputs are added to the sums where prediction noted a random value."""

        def add(place: Place, module: nn.Module, value: Any) -> None:
            seen = self.seen.get(place)
            if seen is None:
                return
            if not isinstance(value, Tensor) or value.shape != seen.shape:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise RuntimeError(
                    f"compare_with_sampling: with drawn weights module {place.module!r} returns {got}, but its "
                    f"prediction has shape {tuple(seen.shape)}; its code must treat tensors and Gaussians alike"
                )
            seen.add(value)

        with self._hooks(chunk, add):
            yield

    def _choice(self, size: int) -> Tensor | None:
        if size <= self.most:
            return None
        device = None if self.generator is None else self.generator.device
        return torch.randperm(size, generator=self.generator, device=device)[: self.most].sort().values.cpu()

    @contextmanager
    def _hooks(self, chunk: int, visit: Any) -> Iterator[None]:
        calls: Counter[str] = Counter()

        def hook(name: str, module: nn.Module, out: Any) -> None:
            call = calls[name]
            calls[name] += 1
            leaves, _ = pytree.tree_flatten_with_path(out, is_leaf=lambda value: isinstance(value, RandomValue))
            for path, value in leaves:
                visit(Place(name, pytree.keystr(path), call, chunk), module, value)

        handles = [
            module.register_forward_hook(lambda module, _, out, name=name: hook(name, module, out))
            for name, module in self.model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
