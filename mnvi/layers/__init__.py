"""Layers that own a posterior; subclasses of torch's with the same ``weight`` and ``bias``.

>>> import mnvi
>>> mnvi.layers.Linear(3, 2, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0)).weight.shape
torch.Size([2, 3])
"""

from mnvi.layers.attention import MultiheadAttention
from mnvi.layers.base import BayesianLayer, bayesian_layers
from mnvi.layers.bilinear import Bilinear
from mnvi.layers.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from mnvi.layers.decay import parameter_groups
from mnvi.layers.embedding import Embedding
from mnvi.layers.linear import Linear
from mnvi.layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from mnvi.layers.registry import register_layer

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BayesianLayer",
    "Bilinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Embedding",
    "GRUCell",
    "LSTMCell",
    "Linear",
    "MultiheadAttention",
    "RNNCell",
    "bayesian_layers",
    "parameter_groups",
    "register_layer",
]
