"""Several devices in one process: torch's ``DataParallel`` for networks that return a ``Gaussian`` or ``Samples``.

``torch.nn.parallel.DistributedDataParallel``, one process per device, is the faster choice and needs nothing from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import scatter_gather
from torch.utils import _pytree as pytree

from mnvi.outputs import Samples


class DataParallel(nn.DataParallel):
    """:class:`torch.nn.DataParallel` whose inputs and outputs may hold Gaussians and Samples.

    Torch's own hands an unknown input whole to every device, and cannot join unknown outputs. Here both are taken apart
    into tensors; the values of ``Samples`` are split and joined along the batch, their second dimension.

    Args:
        module, device_ids, output_device, dim: as in torch.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(torch.nn.Linear(3, 2), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> mnvi.DataParallel(net)(torch.ones(4, 3)).shape  # without an accelerator it calls the module itself
        torch.Size([4, 2])
    """

    def scatter(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[int | torch.device]
    ) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
        parts = scatter((inputs, kwargs or {}), device_ids, self.dim)
        return tuple(part[0] for part in parts), tuple(part[1] for part in parts)

    def gather(self, outputs: Any, output_device: int | torch.device) -> Any:
        return gather(outputs, output_device, self.dim)


def scatter(value: Any, devices: Sequence[int | torch.device], dim: int = 0) -> list[Any]:
    """Split every tensor in a structure along the batch, one piece per device; what is no tensor goes to each."""
    leaves, structure = pytree.tree_flatten(value, is_leaf=_is_samples)
    columns = [_split(leaf, devices, dim) for leaf in leaves]
    pieces = min((len(column) for column in columns), default=len(devices))  # fewer where the batch is small
    return [pytree.tree_unflatten([column[i] for column in columns], structure) for i in range(pieces)]


def gather(outputs: Sequence[Any], device: int | torch.device, dim: int = 0) -> Any:
    """Join the devices' outputs, equal in structure, along the batch."""
    flat = [pytree.tree_flatten(output, is_leaf=_is_samples) for output in outputs]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise ValueError(f"gather: the devices returned different structures, {[str(other) for _, other in flat]}")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return pytree.tree_unflatten([_join(column, device, dim) for column in columns], structure)


def _is_samples(value: Any) -> bool:
    return isinstance(value, Samples)


def _split(leaf: Any, devices: Sequence[int | torch.device], dim: int) -> Sequence[Any]:
    if isinstance(leaf, Samples):
        return [Samples(values) for values in scatter_gather.scatter(leaf.values, devices, dim + 1)]
    if isinstance(leaf, Tensor):
        return scatter_gather.scatter(leaf, devices, dim)
    return [leaf] * len(devices)


def _join(column: Sequence[Any], device: int | torch.device, dim: int) -> Any:
    if isinstance(column[0], Samples):
        return Samples(scatter_gather.gather([samples.values for samples in column], device, dim + 1))
    if isinstance(column[0], Tensor):
        return scatter_gather.gather(column, device, dim)
    return column[0]
