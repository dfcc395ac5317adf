"""How training uses its device. On a GPU it is compiled, channels-last, with TF32, and seldom waits for results.

On a CPU none of this applies, unless `resources.compile` or `resources.channels_last` asks for it: recorded results
keep their last digit. There a training keeps the memory that its steps free.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.utils import get_total_norm

from pipeline import compiler
from pipeline.params import Cell

READ_EVERY = 50  # steps between two looks at a GPU's losses
# Settings of glibc's mallopt, and the largest values it takes: it asks the system for tensors above 32 MB one by one.
KEPT_MEMORY = {"M_MMAP_THRESHOLD": (-3, 32 << 20), "M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_TOP_PAD": (-2, 256 << 20)}


@dataclass(frozen=True)
class Manner:
    """How a training computes.

    Args:
        compiled: whether ``torch.compile`` compiles network and loss.
        layout: of images and of the weights of convolutions.
        read_every: steps between two looks at the losses. Each look waits until the device has computed them.
    """

    compiled: bool
    layout: torch.memory_format
    read_every: int

    def laid_out(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=self.layout)

    def lay_out(self, module: nn.Module) -> None:
        """Lays out the weights of convolutions.

        Kernels of one pixel keep their strides, which both layouts allow: their gradients have these strides, and DDP
        copies a gradient whose strides are not its weight's.
        """
        for parameter in module.parameters():
            if parameter.dim() == 4 and parameter.shape[2:].numel() > 1:
                parameter.data = parameter.data.contiguous(memory_format=self.layout)


def manner(cell: Cell, device: torch.device) -> Manner:
    """How a cell trains on a device; `auto` means on a GPU, for `compile` if it can.

    Batch norm over all workers waits for them in the middle of the network, which a compiled graph cannot.
    """
    on_gpu, asked = device.type == "cuda", cell.resources.compile
    worth_it = on_gpu and not cell.experiment.sync_batch_norm and compiler.available()
    last = on_gpu if cell.resources.channels_last == "auto" else bool(cell.resources.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    return Manner(worth_it if asked == "auto" else bool(asked), layout, READ_EVERY if on_gpu else 1)


def set_up(device: torch.device) -> None:
    """Switches on TF32 and the search for the fastest convolutions; on a CPU keeps memory. For the whole process."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    elif platform.libc_ver()[0] == "glibc":
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Lets the C library keep what tensors free.

    By default it returns large tensors to the system, which clears their pages anew in the next step: 15 % of a step of
    MNVI's ResNet20 with a batch of 128, 9 % of the deterministic network's.
    """
    library = ctypes.CDLL(None)
    for setting, value in KEPT_MEMORY.values():
        library.mallopt(setting, value)


def largest_gradient(parameters: list[Parameter]) -> Tensor:
    """The ∞-norm, NaN included; on a CPU, torch's own function takes ten times as long."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients[0].is_cuda:  # a few kernels for all gradients together
        return get_total_norm(gradients, float("inf"))
    return torch.stack([end for gradient in gradients for end in gradient.aminmax()]).abs().max()
