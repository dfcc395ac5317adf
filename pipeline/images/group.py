"""One worker's view of the workers of a training; a worker alone sends nothing."""

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
        """The initialised process group, or a group of one."""
        if not dist.is_initialized():
            return cls(device=device)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Averages gradients over workers.

        Buffers are not exchanged: training does not read them, every worker's batch norm follows its own images, and
        only rank 0's count (:meth:`copy_buffers`). Gradients live in the communication buckets, so that they are
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
        """This worker's contiguous part of the rows; sizes differ by at most one, and all parts make up the rows."""
        return rows.tensor_split(self.size)[self.rank]

    def from_first(self, value: T) -> T:
        """Rank 0's value, on every worker."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def copy_buffers(self, module: nn.Module) -> None:
        """Gives every worker the buffers of rank 0, which are the ones that rank 0 saves."""
        if self.size > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)
