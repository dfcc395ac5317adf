"""Reads what people train and predict on: arrays, loaders, lists of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from mnvi.moments._torch import pytree
from mnvi.moments.checking import check_number


class Table:
    """Inputs and targets in memory as batches; with ``shuffle`` each pass takes torch's global generator's order.

    Args:
        columns: tensors of the same length, such as inputs and targets.
        batch_size: the last batch may be smaller.
        shuffle: whether each pass has a new order.

    Example:
        >>> import torch
        >>> [len(x) for x, y in Table((torch.zeros(5, 2), torch.zeros(5)), batch_size=2)]
        [2, 2, 1]
    """

    def __init__(self, columns: tuple[Tensor, ...], batch_size: int, shuffle: bool = False) -> None:
        self.columns, self.batch_size, self.shuffle = columns, batch_size, shuffle

    def __len__(self) -> int:
        return -(-self.num_examples // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        count = self.num_examples
        order = (torch.randperm if self.shuffle else torch.arange)(count, device="cpu")
        for rows in order.split(self.batch_size):
            yield tuple(column[rows.to(column.device)] for column in self.columns)

    @property
    def num_examples(self) -> int:
        return len(self.columns[0])


def labelled(
    caller: str, name: str, data: Any, batch_size: int, dtype: torch.dtype, shuffle: bool = False
) -> Iterable[tuple[Any, Tensor]]:
    """Batches of inputs and targets that can be read again and again.

    Args:
        caller: the function that errors name.
        name: its argument.
        data: a pair of arrays or tensors, a ``DataLoader``, or another collection of batches.
        batch_size: for a pair.
        dtype: of floating-point numbers in a pair, the network's.
        shuffle: for a pair.
    """
    check_number(f"{caller}: batch_size", batch_size, least=1, whole=True)
    if isinstance(data, tuple) and len(data) == 2 and is_array(data[0]):
        x, y = (as_tensor(part, dtype) for part in data)
        if x.dim() == 0 or y.dim() == 0 or len(x) != len(y) or len(x) == 0:
            raise ValueError(
                f"{caller}: {name} has inputs of shape {tuple(x.shape)} and targets of shape {tuple(y.shape)}; "
                "expected one target for each input, and at least one"
            )
        return Table((x, y), batch_size, shuffle)  # type: ignore[return-value]
    if is_array(data) or not isinstance(data, Iterable):
        raise TypeError(
            f"{caller}: {name} is a {type(data).__name__}; expected a pair (inputs, targets), or batches of such pairs "
            "as a DataLoader gives them"
        )
    if iter(data) is data:
        raise TypeError(
            f"{caller}: {name} is a {type(data).__name__}, which can be read only once; give a DataLoader or a list"
        )
    return data


def inputs(caller: str, data: Any, batch_size: int, dtype: torch.dtype) -> Iterable[Any]:
    """Batches of inputs: of an array, or of batches whose targets, if they have any, are left out."""
    check_number(f"{caller}: batch_size", batch_size, least=1, whole=True)
    if is_array(data):
        return (batch[0] for batch in Table((as_tensor(data, dtype),), batch_size))
    if isinstance(data, tuple) and len(data) == 2 and is_array(data[0]):
        return inputs(caller, data[0], batch_size, dtype)
    if not isinstance(data, Iterable):
        raise TypeError(
            f"{caller}: data is a {type(data).__name__}; expected inputs as a tensor or array, or batches of them"
        )
    return (batch[0] if isinstance(batch, tuple | list) else batch for batch in data)


def first_pair(caller: str, name: str, batches: Iterable[Any]) -> tuple[Any, Tensor]:
    """The first batch, read without disturbing torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        batch = next(iter(batches), None)
    if batch is None:
        raise ValueError(f"{caller}: {name} is empty; give at least one batch of inputs and targets")
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        found = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
        raise TypeError(f"{caller}: a batch of {name} has {found}; expected a pair of inputs and targets, both tensors")
    return batch[0], batch[1]


def count_examples(batches: Iterable[tuple[Any, Tensor]]) -> int | None:
    """Number of examples in one pass, over all processes; None if it cannot be known without reading them."""
    if isinstance(batches, Table):
        return batches.num_examples
    if isinstance(batches, DataLoader):
        sampler: Any = batches.sampler
        try:
            return len(sampler) * int(getattr(sampler, "num_replicas", 1))
        except TypeError:  # a stream
            return None
    if isinstance(batches, list | tuple):
        return sum(len(targets) for _, targets in batches)
    return None


def count_batches(batches: Iterable[Any]) -> int | None:
    try:
        return len(batches) if isinstance(batches, Sized) else None
    except TypeError:  # a DataLoader of a stream
        return None


def moved(value: Any, device: torch.device) -> Any:
    """A tensor, or a structure of tensors, on a device."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), value)


def is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "__array__")


def as_tensor(value: Any, dtype: torch.dtype) -> Tensor:
    """An array of numpy or pandas, or a tensor, with floating-point numbers in the network's precision."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value.__array__())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
