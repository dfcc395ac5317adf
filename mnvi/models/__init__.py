"""The paper's networks, ResNet20 and EfficientNet-lite0, each defined once and deterministic. Every method starts from
these.

The `dropout` argument adds dropout where the paper has it for MC Dropout. It changes no name in `state_dict`, so that
deterministic and MC Dropout networks exchange checkpoints.

Example:
    >>> from mnvi import models
    >>> sum(parameter.numel() for parameter in models.lenet().parameters())
    1111946
"""

from mnvi.models._all_cnn import all_cnn
from mnvi.models._efficientnet import efficientnet_lite0
from mnvi.models._lenet import lenet
from mnvi.models._mlp import mlp
from mnvi.models._resnet import resnet18, resnet20

__all__ = ["all_cnn", "efficientnet_lite0", "lenet", "mlp", "resnet18", "resnet20"]
