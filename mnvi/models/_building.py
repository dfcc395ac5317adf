"""What the model files share: checking of arguments and initialisation."""

from collections.abc import Callable

from torch import Tensor, nn


def check_size(name: str, value: int) -> None:
    """Refuse a number of classes, channels or units that is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; expected an integer of at least 1")


def check_dropout(dropout: float) -> None:
    """Refuse a dropout probability outside [0, 1)."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout!r}; expected a probability in [0, 1), 0 for none")


def initialise(model: nn.Module, weight_: Callable[[Tensor], Tensor]) -> None:
    """Fill the weights of linear and convolution layers by `weight_`, and their biases with zero."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weight_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
