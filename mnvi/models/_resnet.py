"""ResNet18 and ResNet20 (He et al. 2016): the first with the stem for small images or for ImageNet."""

from typing import Literal

from torch import Tensor, nn

from mnvi.models._building import check_dropout, check_sizes, initialise


class BasicBlock(nn.Module):
    """Residual block: `dropout(relu(f(x) + shortcut(x)))`, where f is two 3×3 convolutions with batch norm.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        stride: of the first convolution and of the shortcut.
        dropout: probability of the dropout at the end.

    Example:
        >>> import torch
        >>> BasicBlock(8, 16, stride=2)(torch.zeros(1, 8, 4, 4)).shape
        torch.Size([1, 16, 2, 2])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x = self.relu(x + shortcut)
        return self.dropout(x)


class ResNet18(nn.Module):
    """The network of `resnet18`. Its parameters have torchvision's names, so that torchvision's weights load."""

    def __init__(self, num_classes: int, stem: Literal["cifar", "imagenet"], in_channels: int, dropout: float) -> None:
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1, dropout), BasicBlock(64, 64, 1, dropout))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2, dropout), BasicBlock(128, 128, 1, dropout))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2, dropout), BasicBlock(256, 256, 1, dropout))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2, dropout), BasicBlock(512, 512, 1, dropout))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet18(
    num_classes: int = 10, stem: Literal["cifar", "imagenet"] = "cifar", in_channels: int = 3, dropout: float = 0.0
) -> ResNet18:
    """ResNet18: a stem, eight residual blocks of 64 to 512 channels, the spatial mean and a linear layer.

    11,173,962 parameters for 10 classes, 11,220,132 for 100, 11,689,512 with the ImageNet stem and 1000. Weights start
    Kaiming-normal (fan-in), biases at zero, batch normalisation as the identity.

    Args:
        num_classes: number of logits.
        stem: "cifar": a 3×3 convolution of stride 1; "imagenet": torchvision's 7×7 of stride 2 and a max-pool.
        in_channels: channels of the image, [batch, in_channels, height, width] of any size.
        dropout: probability for MC Dropout, after every residual block. The names in `state_dict` do not depend on it.

    Example:
        >>> import torch
        >>> resnet18(num_classes=100)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    check_dropout(dropout)
    if stem not in ("cifar", "imagenet"):
        raise ValueError(f"stem is {stem!r}; expected 'cifar' (3×3, for small images) or 'imagenet' (7×7 and max-pool)")
    model = ResNet18(num_classes, stem, in_channels, dropout)
    initialise(model, nn.init.kaiming_normal_)
    return model


class ResNet20(nn.Module):
    """The network of `resnet20`."""

    def __init__(self, num_classes: int, in_channels: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(*(BasicBlock(16, 16, 1, dropout) for _ in range(3)))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2, dropout), *(BasicBlock(32, 32, 1, dropout) for _ in range(2)))
        self.layer3 = nn.Sequential(BasicBlock(32, 64, 2, dropout), *(BasicBlock(64, 64, 1, dropout) for _ in range(2)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.avgpool(x).flatten(1))


def resnet20(num_classes: int = 10, in_channels: int = 3, dropout: float = 0.0) -> ResNet20:
    """ResNet20 for CIFAR: a 3×3 stem, nine residual blocks of 16, 32 and 64 channels, the spatial mean, a linear layer.

    272,474 parameters for 10 classes. Where the size changes, a shortcut is a 1×1 convolution with batch norm, as in
    `resnet18`; He et al. subsample and pad with zero channels there, which needs 2,752 parameters less. Weights start
    Kaiming-normal (fan-in), biases at zero, batch normalisation as the identity.

    Args:
        num_classes: number of logits.
        in_channels: channels of the image, [batch, in_channels, height, width] of any size.
        dropout: probability for MC Dropout, after every residual block. The names in `state_dict` do not depend on it.

    Example:
        >>> import torch
        >>> resnet20(num_classes=100)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    check_dropout(dropout)
    model = ResNet20(num_classes, in_channels, dropout)
    initialise(model, nn.init.kaiming_normal_)
    return model
