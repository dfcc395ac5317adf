"""LeNet for 28×28 images (MNIST)."""

from collections import OrderedDict

from torch import nn

from mnvi.models._building import check_dropout, check_sizes, initialise


def lenet(num_classes: int = 10, in_channels: int = 1, dropout: float = 0.0) -> nn.Sequential:
    """LeNet: two 5×5 convolutions without padding, each with ReLU and 2×2 max-pooling, and two linear layers.

    1,111,946 parameters with the defaults. Weights start Xavier-normal, biases at zero.

    Args:
        num_classes: number of logits.
        in_channels: channels of the image, [batch, in_channels, 28, 28].
        dropout: probability for MC Dropout, after every layer but the last. The names in `state_dict` do not
            depend on it.

    Example:
        >>> import torch
        >>> lenet()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    check_dropout(dropout)
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(in_channels, 32, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            dropout1=nn.Dropout(dropout),
            conv2=nn.Conv2d(32, 64, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            dropout2=nn.Dropout(dropout),
            flatten=nn.Flatten(),  # [batch, 64, 4, 4] -> [batch, 1024]
            fc1=nn.Linear(1024, 1024),
            relu3=nn.ReLU(),
            dropout3=nn.Dropout(dropout),
            fc2=nn.Linear(1024, num_classes),
        )
    )
    initialise(model, nn.init.xavier_normal_)
    return model
