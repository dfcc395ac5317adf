"""Argument checks and initialisation that the model files share."""

from collections.abc import Callable

from torch import Tensor, nn

from mnvi.moments.checking import check_number


def check_sizes(**sizes: int) -> None:
    """Refuse numbers of classes, channels or units that are not positive integers."""
    for name, value in sizes.items():
        check_number(name, value, least=1, whole=True)


def check_dropout(dropout: float) -> None:
    """Refuse a dropout probability outside [0, 1)."""
    check_number("dropout", dropout, least=0, below=1)


def initialise(model: nn.Module, weight_: Callable[[Tensor], Tensor]) -> None:
    """Fill the weights of linear and convolution layers with `weight_` and their biases with zero."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weight_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
