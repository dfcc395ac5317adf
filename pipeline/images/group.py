"""The workers of one training as each of them sees itself; alone, nothing is sent anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @classmethod
    def joined(cls, device: torch.device) -> Group:
        """The process group that was initialised, or a group of one."""
        if not dist.is_initialized():
            return cls(device=device)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Averages gradients over workers.

        Buffers are not sent along: training does not read them, every worker's batch norm follows its own images, and
        what counts is rank 0's (:meth:`copy_buffers`). Gradients live where they are sent from, so that they are
        neither copied nor held twice.
        """
        if self.size == 1:
            return module
        return DistributedDataParallel(
            module,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )

    def sum(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def share(self, rows: Tensor) -> Tensor:
        """A contiguous part of the rows; sizes differ by one at most, and the parts of all workers are the whole."""
        return rows.tensor_split(self.size)[self.rank]

    def from_first(self, value: T) -> T:
        """What rank 0 gave."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def copy_buffers(self, module: nn.Module) -> None:
        """Gives everyone the buffers of rank 0, as they are what it will save."""
        if self.size > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)
