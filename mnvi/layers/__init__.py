"""Layers that own a posterior; subclasses of torch's with the same ``weight`` and ``bias``.

>>> import mnvi
>>> mnvi.layers.Linear(3, 2, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0)).weight.shape
torch.Size([2, 3])
"""

from mnvi.layers.attention import MultiheadAttention
from mnvi.layers.base import BayesianLayer, bayesian_layers
from mnvi.layers.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from mnvi.layers.decay import parameter_groups
from mnvi.layers.linear import Linear
from mnvi.layers.registry import register_layer

__all__ = [
    "BayesianLayer",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Linear",
    "MultiheadAttention",
    "bayesian_layers",
    "parameter_groups",
    "register_layer",
]
