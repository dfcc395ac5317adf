"""Stand-ins for layers of packages that the tests do not install: they compute what those layers compute.

Each class gets the name under which its package defines it. `test_foreign.py` compares them with the real ones where
these are installed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pretending(module: str) -> Any:
    """Class decorator: the class says that it comes from another module."""

    def rename(cls: type) -> type:
        cls.__module__, cls.__qualname__ = module, cls.__name__
        return cls

    return rename


def same_padded(layer: Any, x: Tensor) -> Tensor:
    pads = []
    for size, kernel, stride, dilation in zip(x.shape[-2:], layer.kernel_size, layer.stride, layer.dilation):  # noqa: B905
        total = max((math.ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        pads = [total // 2, total - total // 2, *pads]
    return F.pad(x, pads)


def convolved(layer: Any, x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def standardized(layer: Any) -> Tensor:
    rows = layer.weight.flatten(1)
    rows = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, correction=0, keepdim=True) + layer.eps).sqrt()
    return rows.view_as(layer.weight)


@pretending("timm.layers.conv2d_same")
class Conv2dSame(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return convolved(self, same_padded(self, x), self.weight)


@pretending("timm.layers.std_conv")
class StdConv2d(nn.Conv2d):
    def __init__(self, *args: Any, eps: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return convolved(self, x, standardized(self))


@pretending("timm.layers.std_conv")
class ScaledStdConv2d(nn.Conv2d):
    def __init__(self, *args: Any, eps: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eps = eps
        self.scale = self.weight[0].numel() ** -0.5
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return convolved(self, x, standardized(self) * self.gain * self.scale)


@pretending("timm.layers.std_conv")
class ScaledStdConv2dSame(ScaledStdConv2d):
    same_pad = True

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(same_padded(self, x) if self.same_pad else x)


@pretending("efficientnet_lite_pytorch.utils")
class Conv2dStaticSamePadding(nn.Conv2d):
    def __init__(self, *args: Any, image_size: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        total = max((math.ceil(image_size / self.stride[0]) - 1) * self.stride[0] + self.kernel_size[0] - image_size, 0)
        self.static_padding = nn.ZeroPad2d([total // 2, total - total // 2] * 2)

    def forward(self, x: Tensor) -> Tensor:
        return convolved(self, self.static_padding(x), self.weight)


@pretending("transformers.pytorch_utils")
class Conv1D(nn.Module):
    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], self.nf)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x, approximate="tanh")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope = torch.func.vjp(lambda z: F.gelu(z, approximate="tanh"), x)[1]
        return slope(grad)[0]


@pretending("transformers.models.bloom.modeling_bloom")
class BloomGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Gelu.apply(x) if self.training else F.gelu(x, approximate="tanh")
