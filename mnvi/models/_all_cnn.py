"""All Convolutional Network (Springenberg et al. 2015) for 32×32 images."""

from collections import OrderedDict

from torch import nn

from mnvi.models._building import check_dropout, check_sizes, initialise


def all_cnn(num_classes: int = 10, in_channels: int = 3, dropout: float = 0.0) -> nn.Sequential:
    """AllCNN: nine convolutions with ReLU between them, strides for pooling, and the spatial mean as logits.

    1,369,738 parameters with the defaults, no batch normalisation. Weights start Xavier-normal, biases at zero.

    Args:
        num_classes: number of logits.
        in_channels: channels of the image, [batch, in_channels, height, width] of any size.
        dropout: probability for MC Dropout, after the first two blocks of three convolutions. The names in `state_dict`
            do not depend on it.

    Example:
        >>> import torch
        >>> all_cnn()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    check_dropout(dropout)
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(in_channels, 96, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(96, 96, 3, padding=1),
            relu2=nn.ReLU(),
            conv3=nn.Conv2d(96, 96, 3, padding=1, stride=2),
            relu3=nn.ReLU(),
            dropout1=nn.Dropout(dropout),
            conv4=nn.Conv2d(96, 192, 3, padding=1),
            relu4=nn.ReLU(),
            conv5=nn.Conv2d(192, 192, 3, padding=1),
            relu5=nn.ReLU(),
            conv6=nn.Conv2d(192, 192, 3, padding=1, stride=2),
            relu6=nn.ReLU(),
            dropout2=nn.Dropout(dropout),
            conv7=nn.Conv2d(192, 192, 3, padding=1),
            relu7=nn.ReLU(),
            conv8=nn.Conv2d(192, 192, 1),
            relu8=nn.ReLU(),
            conv9=nn.Conv2d(192, num_classes, 1),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )
    initialise(model, nn.init.xavier_normal_)
    return model
