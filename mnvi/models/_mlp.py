"""Multilayer perceptron for regression on tables."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from mnvi.models._building import check_dropout, check_sizes, initialise


def mlp(
    in_features: int, hidden: int | Sequence[int] = 50, out_features: int = 2, dropout: float = 0.0
) -> nn.Sequential:
    """Linear layers with ReLU between them; by default one hidden layer of 50 units.

    The two outputs are the mean head and the log-variance head that `GaussianLikelihood` reads. Weights start
    Xavier-normal, biases at zero.

    Args:
        in_features: number of input features, [batch, in_features].
        hidden: units of the hidden layer, or a sequence with the units of each.
        out_features: number of outputs.
        dropout: probability for MC Dropout, after each hidden layer. The names in `state_dict` do not depend on it.

    Example:
        >>> import torch
        >>> mlp(13)(torch.zeros(5, 13)).shape
        torch.Size([5, 2])
        >>> [name for name, _ in mlp(13, hidden=(64, 32)).named_children()]
        ['hidden1', 'relu1', 'dropout1', 'hidden2', 'relu2', 'dropout2', 'output']
    """
    widths = [hidden] if isinstance(hidden, int) else list(hidden)
    check_sizes(in_features=in_features, out_features=out_features)
    check_dropout(dropout)
    if not widths:
        raise ValueError(f"hidden is {hidden!r}; expected the units of at least one hidden layer")
    for width in widths:
        check_sizes(hidden=width)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (fan_in, fan_out) in enumerate(zip([in_features] + widths, widths, strict=False), start=1):
        layers[f"hidden{i}"] = nn.Linear(fan_in, fan_out)
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"dropout{i}"] = nn.Dropout(dropout)
    layers["output"] = nn.Linear(widths[-1], out_features)
    model = nn.Sequential(layers)
    initialise(model, nn.init.xavier_normal_)
    return model
